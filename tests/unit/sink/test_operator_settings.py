"""What operators set for a sink is one document: its bytes, data of the version before, and damaged documents."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from isthmus.repl.metastore.port import Versioned
from isthmus.repl.metastore.watched_document import Document
from isthmus.repl.model.errors import BadInput, CodecError
from isthmus.sink import limits, peers, suspensions
from isthmus.sink.limits import SinkLimits
from isthmus.sink.operator_settings import SETTINGS
from isthmus.sink.scheduler import LinkName
from isthmus.sink.suspensions import SETTINGS_PATH
from tests.support.earlier_program import register_present
from tests.support.memory_metastore import MemoryMetastore
from tests.support.sink_listings import links, overview
from tests.support.sink_pair import SinkPair
from tests.support.waiting import eventually
from tests.unit.sink.limits.test_golden_bytes import GOLDEN

JOINED = (
    b'{"v":1,"suspensions":[{"queue":"q","peer":null,"by":"ann","at_ms":5,"reason":"r","node":null},{"queue":null,'
    b'"peer":"http://e:1","by":"bob","at_ms":6,"reason":"","node":"w1"}],"limits":{"*":{"workers":3,"peer_limit":null,'
    b'"bytes_per_second":5,"objects_per_second":null,"by":"ann","at_ms":6,"reason":"r"},"w1":{"workers":null,'
    b'"peer_limit":0,"bytes_per_second":null,"objects_per_second":7,"by":"bob","at_ms":8,"reason":""}},"peers":{"peers"'
    b':[{"queue":"q","url":"http://e:8098","cluster":"east","token_file":null,"removed":false,"by":"ann","at_ms":5,'
    b'"reason":"r"},{"queue":"q","url":"http://f:8098","cluster":"","token_file":"/t","removed":true,"by":"ann","at_ms"'
    b':5,"reason":"r"}],"workers":[{"queue":"q","node":null,"workers":3,"by":"ann","at_ms":5,"reason":"r"},{"queue":"p"'
    b',"node":"w1","workers":4,"by":"bob","at_ms":6,"reason":""}]}}'
)
MARKER = b'"moved to /sink/settings"'


async def put(metastore: MemoryMetastore, path: str, value: bytes) -> None:
    """Write a value, as by hand."""
    found = await metastore.get(path)
    await metastore.put(path, value, None if found is None else found.version)


async def test_documents_of_the_version_before_are_joined_with_all_that_is_in_them() -> None:
    """The bytes that the version before wrote are read as they are, and with the first change become the joined
    document, of which every byte is fixed here; none of them can be decoded at its former path afterwards."""
    metastore = MemoryMetastore()
    await metastore.start(lambda _state: None)
    await register_present(metastore, "n1", 1)
    for document, _value, written in GOLDEN:
        await put(metastore, document.path, written)
    values = await SETTINGS.read(metastore)
    assert {document.path: values[document] for document, _value, _written in GOLDEN} == {
        document.path: value for document, value, _written in GOLDEN
    }
    await SETTINGS.change_one(metastore, limits.DOCUMENT, lambda found: {**found, "w2": SinkLimits(workers=1)})
    await SETTINGS.change_one(
        metastore, limits.DOCUMENT, lambda found: {n: one for n, one in found.items() if n != "w2"}
    )
    joined = await metastore.get(SETTINGS.path)
    assert joined == Versioned(JOINED, 1)
    assert SETTINGS.encode(SETTINGS.decode(JOINED)) == JOINED
    for document, value, _written in GOLDEN:
        assert SETTINGS.decode(JOINED)[document] == value
        assert await metastore.get(document.path) == Versioned(MARKER, 1)


@pytest.mark.parametrize("document", [suspensions.DOCUMENT, limits.DOCUMENT, peers.DOCUMENT], ids=lambda one: one.path)
def test_a_marker_is_unreadable_for_the_version_before(document: Document[Any]) -> None:
    """Its codecs, which this version still has, refuse it; then it holds all links and refuses to change what is set
    (`tests/component/sink/test_sink.py`)."""
    with pytest.raises(CodecError):
        document.decode(Versioned(MARKER, 1))


@pytest.mark.logs_errors("sink.settings_malformed")
async def test_one_damaged_setting_of_the_joined_document_hides_no_other() -> None:
    """At a start the links are held for the limits that cannot be read; suspensions and peers apply, can be changed,
    and the damaged limits stay until they are set with --default."""

    async with SinkPair() as pair:
        await register_present(pair.metastore, "w1", 1)
        await put(pair.metastore, SETTINGS_PATH, b'{"v":1,"limits":{"*":{"workers":-1}}}')
        sink = await pair.sink("q")
        (row,) = links(sink)
        assert row["state"] == "suspended"
        assert f"limits in {SETTINGS_PATH}" in row["reason"]
        await sink.suspend("q", None, "ann", "")
        await sink.remove_peer(LinkName("q", pair.listener.url), "bob", "")
        assert overview(sink)["peers_set"][0]["by"] == "bob"
        found = await pair.metastore.get(SETTINGS_PATH)
        assert found is not None
        assert found.value.endswith(b'"limits":{"*":{"workers":-1}},"peers":' + found.value.partition(b'"peers":')[2])
        with pytest.raises(BadInput, match="--default, on all nodes"):
            await sink.set_limits(SinkLimits(objects_per_second=5, by="ann"), None)
        await sink.set_limits(SinkLimits(bytes_per_second=0, by="ann"), None, forget=True)
        assert [one["by"] for one in overview(sink)["suspensions"]] == ["ann"]


@pytest.mark.logs_errors("sink.settings_malformed")
async def test_a_joined_document_that_is_damaged_as_a_whole_holds_all_links() -> None:
    """A running sink goes on with what it read last; one that starts holds every link and names the document. Every act
    is refused, also resume of everything, since it would end what nobody could read. Once the document can be read
    again, the sinks continue by themselves."""

    async with SinkPair() as pair:
        await register_present(pair.metastore, "w1", 1)
        running = await pair.sink("q")
        await running.set_limits(SinkLimits(workers=3, by="ann"), None)
        good = await pair.metastore.get(SETTINGS_PATH)
        assert good is not None
        await put(pair.metastore, SETTINGS_PATH, b"{")
        await asyncio.sleep(0.05)
        assert running._effective_limits.workers == 3
        await eventually(lambda: links(running)[0]["state"] == "running")
        starting = await pair.sink("q", node_name="w2")
        assert links(starting)[0]["state"] == "suspended"
        assert SETTINGS_PATH in links(starting)[0]["reason"]
        for refused in (
            starting.resume(None, None),
            starting.suspend("q", None, "ann", ""),
            starting.set_limits(SinkLimits(workers=1, by="ann"), None, forget=True),
            starting.remove_peer(LinkName("q", pair.listener.url), "bob", ""),
        ):
            with pytest.raises(BadInput, match=SETTINGS_PATH):
                await refused
        await put(pair.metastore, SETTINGS_PATH, good.value)
        await eventually(lambda: links(starting)[0]["state"] == "running")
        assert starting._effective_limits.workers == 3
