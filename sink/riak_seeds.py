"""Seeds: all keys of a Riak, or of one of its buckets, brought into this cluster once; what is done, in the metastore.

    {"seeds": [{"riak", "run", "node", "way", "state", ..., "by", "at_ms", "reason"}]}

One record for each Riak, of its newest seed. Names of bucket types and buckets are percent-encoded. A seed goes bucket
by bucket in the order of their names, so that the last one that is done says where to go on. Nodes of a version before
it ignore the document.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal
from urllib.parse import quote, unquote_to_bytes

from msgspec import Meta, Struct
from msgspec.structs import replace

from isthmus.queues.json_document import decode_json, encode_json, json_document
from isthmus.repl.metastore.watched_document import Document
from isthmus.repl.model.errors import BadInput, CodecError

PATH: Final = "/riak/seeds"

RECORDS_MAX: Final = 64
"""Most Riaks with a record; the oldest that has ended goes."""

NOTES_MAX: Final = 20
"""Most notes of a seed; further ones are counted."""

Count = Annotated[int, Meta(ge=0)]
Place = tuple[str, str]
"""Bucket type and bucket, percent-encoded."""


class SeedRecord(Struct, frozen=True, kw_only=True):
    """A seed. `way`: by the Riak's queue, or by its lists of keys. `run` is another one each time it begins or goes on:
    who finds another one stops."""

    riak: str
    run: str
    node: str
    way: Literal["queue", "keys"] = "queue"
    bucket_type: str | None = None
    """None: all that the peer's settings take."""
    bucket: str | None = None
    state: Literal["running", "stopped", "failed", "done"] = "running"
    buckets: Count | None = None
    """Buckets in all; None: not listed yet."""
    buckets_done: Count = 0
    after: Place | None = None
    """The last bucket that is done."""
    current: Place | None = None
    current_keys: Count | None = None
    """Keys of the current bucket; None: not counted."""
    current_done: Count = 0
    current_upto_s: Count = 0
    """Keys of the current bucket that were last modified before this second are done."""
    keys: Count = 0
    """Keys that the Riak was asked to send, or whose objects were fetched."""
    compared: Count = 0
    """Keys whose clock here was compared with the Riak's."""
    missing: Count = 0
    """Of them, keys that this cluster does not have as the Riak does, after they were sent twice."""
    refused: Count = 0
    """Objects that became dead letters, of a seed by lists of keys."""
    notes: tuple[str, ...] = ()
    notes_left_out: Count = 0
    error: str = ""
    """Why it failed, or what it waits for."""
    began_ms: Count = 0
    changed_ms: Count = 0
    ended_ms: Count | None = None
    by: str = ""
    at_ms: Count = 0
    reason: str = ""

    def fraction(self) -> float:
        """How much of it is done, by buckets; 0 while they are not listed."""
        if not self.buckets:
            return float(self.state == "done")
        within = min(1.0, self.current_done / self.current_keys) if self.current_keys else 0.0
        return min(1.0, (self.buckets_done + within) / self.buckets)

    def left_ms(self, now_ms: int) -> int | None:
        """About how long it still takes, at the pace so far; None: not known."""
        done = self.fraction()
        if self.state != "running" or done < 0.01:
            return None
        return int((now_ms - self.began_ms) * (1 - done) / done)

    def noted(self, note: str) -> SeedRecord:
        """This, with a note for operators."""
        if note in self.notes:
            return self
        if len(self.notes) >= NOTES_MAX:
            return replace(self, notes_left_out=self.notes_left_out + 1)
        return replace(self, notes=(*self.notes, note))


class Seeds(Struct, frozen=True):
    """All records."""

    seeds: tuple[SeedRecord, ...] = ()

    def of(self, riak: str) -> SeedRecord | None:
        """The newest seed of a Riak."""
        return next((one for one in self.seeds if one.riak == riak), None)

    def with_record(self, record: SeedRecord) -> Seeds:
        """These, with the record in the place of that of its Riak. Raises BadInput at the limit."""
        others = tuple(one for one in self.seeds if one.riak != record.riak)
        if len(others) >= RECORDS_MAX:
            ended = [one for one in others if one.state != "running"]
            if not ended:
                raise BadInput(f"seeds of {RECORDS_MAX} Riaks run at most")
            oldest = min(ended, key=lambda one: one.changed_ms)
            others = tuple(one for one in others if one is not oldest)
        return Seeds((*others, record))


def decode(value: bytes) -> Seeds:
    """The seeds in a metastore value. Raises CodecError."""
    return decode_json(value, Seeds, "list of seeds")


DOCUMENT: Final[Document[Seeds]] = json_document(PATH, decode, encode_json, Seeds())


def refuse_unreadable(error: CodecError) -> Seeds:
    """Raises BadInput where the document cannot be decoded."""
    raise BadInput(f'the seeds cannot be read ({error}): write {{"seeds": []}} to {PATH} in the metastore') from error


def place_of(bucket_type: bytes, bucket: bytes) -> Place:
    """Names as a record has them."""
    return quote(bucket_type, safe=""), quote(bucket, safe="")


def names_of(place: Place) -> tuple[bytes, bytes]:
    """Bucket type and bucket of a record."""
    return unquote_to_bytes(place[0]), unquote_to_bytes(place[1])
