"""Properties in the metastore: one document, bounded, changed by conditional writes, followed by every node."""

from __future__ import annotations

import asyncio

import pytest

from isthmus.config.bucket_properties import Value
from isthmus.repl.controller import bucket_properties
from isthmus.repl.controller.bucket_properties import (
    DIGESTS_MAX,
    PROPERTIES_DOCUMENT,
    PROPERTIES_PATH,
    PropertyCache,
    PropertyScope,
    PropertySettings,
    TooManyProperties,
    change_properties,
    decode_properties,
    encode_properties,
)
from isthmus.repl.controller.stored_setting import ChangedMeanwhile, Setting
from isthmus.repl.metastore import watched_document
from isthmus.repl.metastore.port import Versioned
from isthmus.repl.model.errors import Corruption, NotReady
from isthmus.repl.model.properties import DEFAULTS
from isthmus.repl.property_digests import differences
from tests.support.controller_cluster import eventually
from tests.support.memory_metastore import MemoryEnsemble, MemoryMetastore, WriteFault

pytestmark = pytest.mark.virtual_time

ODD = PropertyScope("notes", b"a/b \xff")


@pytest.fixture(autouse=True)
def _without_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Polling is too slow to matter: every effect follows from a watch."""
    monkeypatch.setattr(watched_document, "POLL_S", 60)


def a_setting(value: Value) -> Setting:
    """A setting with an author and a time."""
    return Setting(value, "ann@desk", 17)


async def nodes(count: int) -> list[MemoryMetastore]:
    """The metastore as several nodes see it."""
    ensemble = MemoryEnsemble()
    found = [MemoryMetastore(ensemble) for _ in range(count)]
    for metastore in found:
        await metastore.start(lambda _state: None)
    return found


def test_the_document_gives_back_what_went_in() -> None:
    """Buckets of any bytes, operators and times are kept; damage is reported as such, and properties of other versions
    are skipped."""
    settings = PropertySettings(
        {PropertyScope("notes"): {"allow_mult": a_setting(False)}, ODD: {"delete_mode": a_setting(3_000)}}
    )
    found = decode_properties(Versioned(encode_properties(settings), 4))
    assert found == PropertySettings(settings.scopes, 4)
    for bad in (b"{", b"[]", b'{"v":2,"places":[]}', b'{"v":1,"places":[["t",null,{"allow_mult":[7,"a",1]}]]}'):
        with pytest.raises(Corruption):
            decode_properties(Versioned(bad, 1))
    other = b'{"v":1,"places":[["t",null,{"of_tomorrow":[7,"a",1]}]]}'
    assert decode_properties(Versioned(other, 1)).scopes == {}


def test_a_buckets_own_setting_comes_before_its_types() -> None:
    """The order is bucket, bucket type, default; other types and buckets are not affected."""
    settings = PropertySettings()
    settings = settings.changed(PropertyScope("notes"), {"allow_mult": a_setting(False), "warn_siblings": a_setting(9)})
    settings = settings.changed(ODD, {"allow_mult": a_setting(True)})
    found = settings.effective()
    assert found[b"notes"].of(b"other") == DEFAULTS._replace(allow_mult=False, warn_siblings=9)
    assert found[b"notes"].of(b"a/b \xff") == DEFAULTS._replace(warn_siblings=9)
    assert b"default" not in found
    settings = settings.changed(ODD, {"allow_mult": None})
    assert ODD not in settings.scopes


async def test_every_node_goes_by_a_change_at_once() -> None:
    """One conditional write at one node: the property caches of all nodes get it by their watch, and drop it when it is
    unset."""

    metastores = await nodes(3)
    books = [PropertyCache(metastore) for metastore in metastores]
    for book in books:
        await book.start()
    await change_properties(metastores[0], PropertyScope("notes"), {"last_write_wins": a_setting(True)})
    await eventually(lambda: all(book.of_type(b"notes").of(b"b").last_write_wins for book in books))
    assert books[1].settings.own(PropertyScope("notes"))["last_write_wins"].by == "ann@desk"
    assert not books[0].of_type(b"default").of(b"b").last_write_wins
    await change_properties(metastores[1], PropertyScope("notes"), {}, alone=True)
    await eventually(lambda: not any(book.of_type(b"notes").of(b"b").last_write_wins for book in books))
    for book in books:
        await book.stop()


async def test_two_changes_at_the_same_time_are_both_kept() -> None:
    """Each is made on the other's result."""

    one, two = await nodes(2)
    await asyncio.gather(
        *(change_properties(one, PropertyScope("t"), {"max_siblings": a_setting(n)}) for n in (1,)),
        *(change_properties(two, PropertyScope("t", b"%d" % n), {"allow_mult": a_setting(False)}) for n in range(4)),
    )
    found = await PROPERTIES_DOCUMENT.read(one)
    assert len(found.scopes) == 5


async def test_properties_are_bounded_in_number_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit one more bucket is refused and nothing is written, while existing ones may change; the same holds
    for a full document."""
    monkeypatch.setattr(bucket_properties, "OWN_BUCKETS_MAX", 2)

    (metastore,) = await nodes(1)
    for bucket in (b"1", b"2"):
        await change_properties(metastore, PropertyScope("t", bucket), {"allow_mult": a_setting(False)})
    with pytest.raises(TooManyProperties, match="2 buckets have properties"):
        await change_properties(metastore, PropertyScope("t", b"3"), {"allow_mult": a_setting(False)})
    await change_properties(metastore, PropertyScope("t", b"2"), {"max_siblings": a_setting(3)})
    await change_properties(metastore, PropertyScope("t"), {"max_siblings": a_setting(3)})
    before = await metastore.get(PROPERTIES_PATH)
    assert before is not None
    monkeypatch.setattr(bucket_properties, "DOCUMENT_BYTES_MAX", len(before.value))
    with pytest.raises(TooManyProperties, match="bytes of the metastore"):
        await change_properties(metastore, PropertyScope("t"), {"warn_siblings": a_setting(3)})
    assert await metastore.get(PROPERTIES_PATH) == before


async def test_a_change_whose_answer_is_lost_is_made_once() -> None:
    """The next round reads the outcome; if the metastore is unavailable, the error says that nothing was changed."""

    (metastore,) = await nodes(1)
    metastore.spoil(WriteFault.ANSWER_LOST)
    found = await change_properties(metastore, PropertyScope("t"), {"max_siblings": a_setting(3)})
    assert found.own(PropertyScope("t"))["max_siblings"].value == 3
    assert found.version == 0
    metastore.disconnect()
    with pytest.raises(NotReady, match="nothing was changed"):
        await change_properties(metastore, PropertyScope("t"), {"max_siblings": a_setting(4)})


async def test_a_change_of_what_another_operator_changed_is_refused() -> None:
    """Each property to be changed must have its expected value, or be unset; others may have changed. To unset all,
    none may have been added. A change whose answer is lost does not conflict with itself."""

    (metastore,) = await nodes(1)
    scope = PropertyScope("t")
    metastore.spoil(WriteFault.ANSWER_LOST)
    await change_properties(metastore, scope, {"max_siblings": a_setting(3)}, expected={})
    await change_properties(metastore, scope, {"allow_mult": a_setting(False)}, expected={})
    with pytest.raises(ChangedMeanwhile, match="max_siblings of t was changed meanwhile: it was not set"):
        await change_properties(metastore, scope, {"max_siblings": a_setting(4)}, expected={})
    with pytest.raises(ChangedMeanwhile, match="allow_mult of t was changed meanwhile: it was set to true"):
        await change_properties(metastore, scope, {"allow_mult": None}, expected={"allow_mult": True})
    with pytest.raises(ChangedMeanwhile, match="allow_mult of t was changed meanwhile: it was not set"):
        await change_properties(metastore, scope, {}, alone=True, expected={"max_siblings": 3})
    seen = {"max_siblings": 3, "allow_mult": False, "warn_siblings": 1}
    with pytest.raises(ChangedMeanwhile, match="it was set to 1, it is not set now"):
        await change_properties(metastore, scope, {}, alone=True, expected=seen)
    metastore.spoil(WriteFault.ANSWER_LOST)
    found = await change_properties(metastore, scope, {}, alone=True, expected={"max_siblings": 3, "allow_mult": False})
    assert found.scopes == {}


async def test_clusters_compare_their_property_digests() -> None:
    """Digests are equal if only properties differ that do not matter to the other cluster, and differ otherwise."""

    one, two = (await nodes(1))[0], (await nodes(1))[0]
    books = [PropertyCache(one), PropertyCache(two)]

    async def set_(metastore: MemoryMetastore, scope: PropertyScope, **values: Value) -> None:
        await change_properties(metastore, scope, {name: a_setting(value) for name, value in values.items()})
        for book, each in zip(books, (one, two), strict=True):
            book.learn(await PROPERTIES_DOCUMENT.read(each))

    await set_(one, PropertyScope("t"), max_siblings=3)
    await set_(one, PropertyScope("t", b"b"), warn_siblings=3)
    assert books[0].digests() == books[1].digests() == {}
    await set_(one, PropertyScope("t"), delete_mode="immediate")
    assert books[0].digests() != books[1].digests()
    await set_(two, PropertyScope("t"), delete_mode="immediate")
    assert books[0].digests() == books[1].digests() != {}
    assert books[0].scope_digests() == books[1].scope_digests() != {}
    await set_(two, PropertyScope("t", b"b"), allow_mult=False)
    assert books[0].digests() != books[1].digests()
    (found,) = differences(books[0].digests(), books[1].digests(), books[0].scope_digests(), books[1].scope_digests())
    assert found == (b"t", b"b", ("allow_mult",))


def test_no_more_digests_are_sent_than_a_fetch_may_carry() -> None:
    """If there are too many bucket types with properties of their own, the first by name are sent, so all clusters send
    the same ones."""
    scopes = {
        PropertyScope(f"t{number:05}"): {"delete_mode": a_setting("immediate")} for number in range(DIGESTS_MAX + 50)
    }
    book = PropertyCache(MemoryMetastore(MemoryEnsemble()))
    book.learn(PropertySettings(scopes, 1))
    assert list(book.digests()) == [b"t%05d" % number for number in range(DIGESTS_MAX)]
