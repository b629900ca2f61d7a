"""A key row that cannot be read, met by listings and by the walk that looks for tombstones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.repl.coordinator import listing, tombstone_reaper
from isthmus.repl.model.entry import encode_key_row
from isthmus.repl.model.errors import Corruption
from isthmus.repl.model.objects import TOMBSTONE, Content, Object, encode_with_summary, write
from isthmus.repl.model.properties import FixedProperties
from isthmus.repl.model.vclock import EMPTY, actor_of
from isthmus.repl.store.port import ListedKey


def row(offset: int, content: Content) -> bytes:
    """The key row of an object with one write."""
    made: Object = write(None, EMPTY, content, (actor_of(b"A" * 16, 1), offset + 1), 1_000)
    return encode_key_row(encode_with_summary(made)[1], offset)


SOUND = ListedKey(b"b", b"a", row(0, Content(b"v")))
DAMAGED = ListedKey(b"b", b"k", b"spoiled")
DELETED = ListedKey(b"b", b"z", row(2, TOMBSTONE))


def test_a_listing_with_a_damaged_row_names_it() -> None:
    """Whether the key has a value is not known: neither with it nor without it would the listing be right. The refusal
    names the key and what mends it."""
    assert listing._page([SOUND, DELETED], b"b", None).names == [b"a"]
    with pytest.raises(Corruption, match=r"key row of b'b'/b'k' cannot be read.*repair-keys --mend"):
        listing._page([SOUND, DAMAGED, DELETED], b"b", None)


def test_a_damaged_row_keeps_no_tombstone_behind_it_from_being_reaped() -> None:
    """The walk over the keys goes on behind it, or it would begin anew for ever and never come further."""

    def keys(*_: object) -> Any:
        yield from (SOUND, DAMAGED, DELETED)

    kind = SimpleNamespace(of=lambda _bucket: SimpleNamespace(reap_after_ms=0, repl_reap=False))
    changes = SimpleNamespace(list_keys=keys, changes=lambda *_: [])
    reaper: Any = SimpleNamespace(_properties=FixedProperties(kind), _runtime=SimpleNamespace(store=changes))
    reaper._tombstone_of = lambda *given: tombstone_reaper.Reaper._tombstone_of(reaper, *given)
    found, after = tombstone_reaper.Reaper._page(reaper, SimpleNamespace(id=0, bucket_type=b"default"), None)  # type: ignore[arg-type]
    assert ([one.key for one in found], after) == ([b"z"], None)
