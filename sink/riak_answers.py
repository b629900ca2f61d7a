"""Answers of a Riak's queue as the sink sees them: a key and an object, or why the object cannot be right.

An answer that cannot be decoded becomes a dead letter, whose payload is the answer behind RAW_ANSWER: a later version
may decode it, and its key and clock may be readable by themselves. Pure, except that a defect is reported.
"""

from __future__ import annotations

import zlib
from hashlib import sha256
from typing import Final, NamedTuple

from isthmus.repl.model.errors import CodecError, IsthmusError, TooLarge
from isthmus.repl.model.keys import DEFAULT_BUCKET_TYPE, Key
from isthmus.repl.model.objects import Object, summarize_encoded
from isthmus.repl.model.vclock import Clock, decode_clock
from isthmus.repl.riak.clocks import CLOCK_BYTES_MAX, decode_clock_term
from isthmus.repl.riak.objects import SiblingsWithoutDots, decode_riak_object
from isthmus.repl.riak.queue_answers import decode_queue_answer
from isthmus.repl.riak.terms import TermReader
from isthmus.repl.unforeseen import unforeseen

RAW_ANSWER: Final = b"\xc1riak\x00"
"""Before an answer of a Riak that is kept as it came, in the place of an object. No object begins so: msgpack never
writes the byte 0xc1."""

_UNNAMED: Final = b"unreadable-answer-"

_AGAIN: Final = "isthmus sink dead-letters retry asks the Riak for the key again"

_DVV: Final = "then retry this letter"


class AnswerContent(NamedTuple):
    """What an answer has: `stored` None: it cannot be right, and `fault` says why and what to do."""

    key: Key
    stored: Object | None
    fault: IsthmusError | None


class DotlessSiblings(CodecError):
    """Siblings without dots: which write made them is not known, so a merge could lose one."""

    reason = "siblings-without-dots"


class UnreadableAnswer(CodecError):
    """An answer of a Riak's queue that cannot be decoded."""


def read_answer(body: bytes, object_bytes_max: int) -> AnswerContent | None:
    """The change in a queue's answer; None for a reap, which is not carried out here: a tombstone is reaped by this
    cluster's own rules."""
    key = None
    try:
        change = decode_queue_answer(body, object_bytes_max)
        if change is None or change.encoded is None:
            return None
        key = Key(change.bucket_type, change.bucket, change.key)
        return AnswerContent(key, decode_riak_object(change.encoded), None)
    except SiblingsWithoutDots as error:
        fault: IsthmusError = DotlessSiblings(f"{error}; {_DVV}")
    except TooLarge as error:
        fault = error
    except CodecError as error:
        fault = UnreadableAnswer(f"{error}; {_AGAIN}")
    except Exception as error:  # noqa: BLE001 -- one change must not stop a link
        fault = unforeseen.exception("sink.riak_answer_bug", error, size_bytes=len(body))
    return AnswerContent(key or _key_of(body), None, fault)


def is_unnamed(key: Key) -> bool:
    """Whether the key stands for an answer from which none could be read."""
    return key.bucket_type == b"" and key.key.startswith(_UNNAMED)


def raw_answer(payload: bytes) -> bytes | None:
    """The answer in a dead letter's payload; None if the payload is an object."""
    return payload[len(RAW_ANSWER) :] if payload.startswith(RAW_ANSWER) else None


def clock_of_letter(payload: bytes) -> Clock:
    """The clock of a dead letter's object, or of an answer's. Raises CodecError."""
    answer = raw_answer(payload)
    return decode_clock(summarize_encoded(payload).clock) if answer is None else _clock_in(answer)


# ---------------------------------------------------------------- what is readable of a damaged answer

_CHECKSUM_BYTES: Final = 4
_COMPRESSED: Final = 0x18
_OBJECT: Final = b"\x35\x01"


def _names(body: bytes) -> tuple[TermReader, int, Key]:
    """The reader behind the key of an answer, its kind, and the key. Raises CodecError."""
    reader = TermReader(body, "an answer of a queue")
    reader.take(1)
    if reader.number(1):
        reader.sized()
    reader.take(_CHECKSUM_BYTES)
    kind = reader.number(1)
    return reader, kind, Key(reader.sized() or DEFAULT_BUCKET_TYPE, reader.sized(), reader.sized())


def _key_of(body: bytes) -> Key:
    """The key of an answer that cannot be decoded; one that stands for its bytes if that cannot be read either."""
    try:
        return _names(body)[2]
    except CodecError:
        return Key(b"", b"", _UNNAMED + sha256(body).hexdigest()[:16].encode())


def _clock_in(body: bytes) -> Clock:
    reader, kind, _ = _names(body)
    encoded = reader.rest()
    if kind == _COMPRESSED:
        try:
            encoded = zlib.decompressobj().decompress(encoded, CLOCK_BYTES_MAX)
        except zlib.error as error:
            raise CodecError(f"an object of a Riak that cannot be unpacked: {error}") from error
    inner = TermReader(encoded, "an object")
    if inner.take(len(_OBJECT)) != _OBJECT:
        raise CodecError("an object of a Riak of an unknown form")
    return decode_clock_term(inner.sized())
