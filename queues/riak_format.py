"""A change of a queue in the form in which a Riak fetches it (`repl.riak.queue_answers`). Pure."""

from __future__ import annotations

from isthmus.queues.window_rules import Item
from isthmus.repl.model.objects import decode_object
from isthmus.repl.riak.queue_answers import encode_queue_answer


def encode_answer(item: Item, *, hashes: bool = False) -> bytes:
    """The answer with a whole change; with `hashes` in the form `internal_aaehash`. Raises CodecError when the payload
    is no object."""
    _, _, _, bucket_type, bucket, key, _, _, payload = item
    return encode_queue_answer(bucket_type, bucket, key, decode_object(payload), hashes=hashes)
