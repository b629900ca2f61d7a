"""What a write batch makes of an item by its usual rules, without its early exits."""

from __future__ import annotations

from isthmus.repl.coordinator.write_batch import Decision, WriteBatch, check_size
from isthmus.repl.model.errors import CodecError
from isthmus.repl.model.requests import PushItem, WriteRequest


def without_early_exit(batch: WriteBatch, item: WriteRequest | PushItem, hash64: int) -> Decision:
    """As `WriteBatch.write` or `push`, though the item be common."""
    key = item.key
    batch._enter(key.bucket)
    pending, stored = batch._newest(hash64, (key.bucket, key.key))
    if isinstance(item, WriteRequest):
        check_size(len(item.content.value), key, batch.limits, batch.properties.of(key.bucket), batch.warned)
        return batch._write_usual(item, hash64, pending, stored)
    if len(item.payload) > batch.limits.entry_bytes:
        raise batch.too_long(item.payload)
    if len(item.origin) != 16:
        raise CodecError("a push whose origin is not a cluster uuid of 16 bytes")
    return batch._push_usual(item, hash64, pending, stored)
