"""Limits that operators set: by node, for all nodes, and of the file."""

from __future__ import annotations

import pytest

from isthmus.repl.model.errors import CodecError
from isthmus.sink.limits import ALL_NODES, EffectiveLimits, SinkLimits, limits_for
from isthmus.sink.limits import DOCUMENT as LIMITS
from isthmus.sink.limits import changed as with_limits
from isthmus.sink.limits import decode as decode_limits
from tests.support.memory_metastore import MemoryMetastore


async def test_limits_of_a_node_count_before_those_of_all_and_those_before_the_file() -> None:
    """Precedence holds for each field; limits that were set are kept in the metastore, and unsetting the last field
    deletes the entry."""

    metastore = MemoryMetastore()
    await metastore.start(lambda state: None)
    default = EffectiveLimits(24, 0, 0, 0, None)

    async def change(node: str, new: SinkLimits, *, unset: bool = False) -> dict[str, SinkLimits]:
        return (await LIMITS.change(metastore, lambda before: with_limits(before, node, new, unset=unset))).value

    await change(ALL_NODES, SinkLimits(workers=5, bytes_per_second=100, by="ann", at_ms=1))
    entries = await change("w1", SinkLimits(workers=7, by="bob", at_ms=2))
    assert entries == await LIMITS.read(metastore)
    mine, others = limits_for("w1", entries, default), limits_for("w2", entries, default)
    assert mine[:4] == (7, 0, 100, 0)
    assert others[:4] == (5, 0, 100, 0)
    assert mine.set_by is not None
    assert (mine.set_by.by, default.set_by) == ("bob", None)
    entries = await change("w1", SinkLimits(workers=1, by="bob"), unset=True)
    assert set(entries) == {ALL_NODES}
    for bad in (b"[]", b"x", b'{"*": 7}', b'{"*": {"workers": -1}}', b'{"*": {"workers": "7"}}'):
        with pytest.raises(CodecError):
            decode_limits(bad)
