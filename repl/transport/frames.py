"""Frames between the nodes of one cluster: headers, checksums, pieces. Pure; bytes are described in `docs/formats.md`.

A frame is a header of 16 bytes and a body. Longer bodies are cut into pieces, each a frame of its own, so that other
lanes get their turn in between; within a lane the pieces follow each other without gaps. Every size is checked before
memory is allocated for it, and bytes that `frame_head` would not have written end in a FrameFault, which costs the
connection. Bodies are decoded in `codec`, `handshake` and `rpc`; `lanes` decides what is sent when.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from struct import Struct
from typing import Any, Final, NamedTuple

import msgpack
from xxhash import xxh64, xxh64_intdigest

from isthmus.repl.model.errors import CodecError, PeerFault

MAGIC: Final = 0xA9B1
"""First two bytes of each frame. Not ASCII, so that a browser or another protocol is refused at once."""

FIRST_BYTES_MAX: Final = 1_024
"""Longest frame during the handshake, which bounds the memory of an unknown peer; a greeting has about 200 bytes."""

PIECE_BYTES_MAX: Final = 256 * 1024
"""Longest frame after the handshake, twice what `lanes` sends; longer bodies come in pieces."""

LIST_ITEMS_MAX: Final = 1_024
"""Most items of a list in a body. msgpack allocates a list before its items are read, and lists may nest 1,024 deep, so
this bounds the memory of a hostile body to 8 MB. Senders begin another frame."""

CHUNKS_MAX: Final = 256
"""Most chunks of an unfinished frame before they are joined: slow bytes must not cost more than fast ones."""

_HEADER: Final = Struct("<HBBIQ")
HEADER_BYTES: Final = _HEADER.size

_MORE: Final = 0x80
_LANE_BITS: Final = 0x7F

Parts = tuple[bytes, ...]
"""Consecutive bytes that are not joined yet."""


class FrameKind(IntEnum):
    """Kind of a body."""

    GREETING = 1
    WELCOME = 2
    REFUSAL = 3
    PING = 4
    PONG = 5
    MESSAGES = 6
    REQUESTS = 7
    ANSWERS = 8


class Lane(IntEnum):
    """Send priority of a frame, the most urgent first."""

    URGENT = 0
    """Handshake and pings: a few bytes."""
    LIVE = 1
    CALLS = 2
    """Requests and answers: beside the live lane, so that neither waits for the other's largest item."""
    CATCH_UP = 3


_KINDS: Final = {kind.value: kind for kind in FrameKind}
_LANES: Final = {lane.value: lane for lane in Lane}


class FrameFault(PeerFault):
    """Bytes that no node of this version sends; the connection is closed. `reason` is a stable code."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class WireFrame(NamedTuple):
    """One complete body, its pieces joined."""

    kind: FrameKind
    lane: Lane
    body: bytes | memoryview


def frame_head(kind: FrameKind, lane: Lane, body: Sequence[bytes | memoryview], *, more: bool = False) -> bytes:
    """The header of a frame with this body, in parts; `more`: it is a piece, and not the last."""
    flags = lane | _MORE if more else int(lane)
    if len(body) == 1:
        length = len(body[0])
        digest = xxh64_intdigest(body[0], kind << 8 | flags)
    else:
        length = 0
        hasher = xxh64(seed=kind << 8 | flags)
        for part in body:
            length += len(part)
            hasher.update(part)
        digest = hasher.intdigest()
    assert length <= PIECE_BYTES_MAX, f"a frame of {length} bytes"
    return _HEADER.pack(MAGIC, kind, flags, length, digest)


class FrameReader:
    """Splits received bytes into frames and joins pieces. `frame_limit` (bytes of one frame) and `body_limit` (bytes of
    the pieces of one body) may be raised at any time."""

    def __init__(self, frame_limit: int, body_limit: int) -> None:
        self.frame_limit = frame_limit
        self.body_limit = body_limit
        self._chunks: list[bytes] = []
        self._kept = 0
        self._needed = HEADER_BYTES
        self._unfinished: dict[Lane, _Unfinished] = {}
        self._frame_waited_ms = 0

    def frames(self, data: bytes) -> Iterator[WireFrame]:
        """The frames that `data` completes. Raises FrameFault after the frames before the fault."""
        if self._chunks:
            self._chunks.append(data)
            self._kept += len(data)
            if self._kept < self._needed:
                if len(self._chunks) > CHUNKS_MAX:
                    self._chunks = [b"".join(self._chunks)]
                return
            data = b"".join(self._chunks)
            self._chunks = []
        view = memoryview(data)
        at, end = 0, len(data)
        self._needed = HEADER_BYTES
        while end - at >= HEADER_BYTES:
            magic, kind, flags, length, digest = _HEADER.unpack_from(data, at)
            self._check(magic, kind, flags, length)
            if end - at < HEADER_BYTES + length:
                self._needed = HEADER_BYTES + length
                break
            body = view[at + HEADER_BYTES : at + HEADER_BYTES + length]
            at += HEADER_BYTES + length
            self._frame_waited_ms = 0
            if xxh64_intdigest(body, kind << 8 | flags) != digest:
                raise FrameFault("checksum", f"a frame of {length} bytes fails its checksum")
            if not flags & _MORE and not self._unfinished:
                yield WireFrame(_KINDS[kind], _LANES[flags], body)
            elif (joined := self._joined(_KINDS[kind], flags, body)) is not None:
                yield joined
        if at < end:
            self._chunks = [data[at:]]
            self._kept = end - at

    def _check(self, magic: int, kind: int, flags: int, length: int) -> None:
        if magic != MAGIC:
            raise FrameFault("magic", f"a frame begins with {magic:#06x}: not a node of ours")
        if length > self.frame_limit:
            raise FrameFault("too-long", f"a frame of {length} bytes, at most {self.frame_limit} are taken now")
        if kind not in _KINDS:
            raise FrameFault("unknown-kind", f"a frame of unknown kind {kind}")
        if flags & _LANE_BITS not in _LANES:
            raise FrameFault("unknown-kind", f"a frame of unknown lane {flags & _LANE_BITS}")

    def _joined(self, kind: FrameKind, flags: int, piece: memoryview) -> WireFrame | None:
        lane = _LANES[flags & _LANE_BITS]
        unfinished = self._unfinished.get(lane)
        if unfinished is None:
            if not flags & _MORE:
                return WireFrame(kind, lane, piece)
            unfinished = self._unfinished[lane] = _Unfinished(kind)
        if kind != unfinished.kind:
            raise FrameFault("pieces", f"a piece of {kind.name} within a {unfinished.kind.name}")
        if not piece:
            raise FrameFault("pieces", "an empty piece")
        unfinished.length += len(piece)
        if unfinished.length > self.body_limit:
            raise FrameFault("too-long", f"pieces of more than {self.body_limit} bytes in all")
        unfinished.pieces.append(bytes(piece))
        unfinished.waited_ms = 0
        if flags & _MORE:
            return None
        del self._unfinished[lane]
        return WireFrame(kind, lane, b"".join(unfinished.pieces))

    def waited_ms(self, elapsed_ms: int) -> int:
        """Add `elapsed_ms` to the waiting times, and return the longest one: of an unfinished frame for its end, or of
        an unfinished body for its next piece."""
        longest = 0
        if self._chunks:
            self._frame_waited_ms += elapsed_ms
            longest = self._frame_waited_ms
        for unfinished in self._unfinished.values():
            unfinished.waited_ms += elapsed_ms
            longest = max(longest, unfinished.waited_ms)
        return longest


class _Unfinished:
    """A body of which not all pieces have been received."""

    def __init__(self, kind: FrameKind) -> None:
        self.kind = kind
        self.pieces: list[bytes] = []
        self.length = 0
        self.waited_ms = 0


def unpacked(body: bytes | memoryview) -> tuple[Any, ...]:
    """Decode a body, which must be a msgpack list. Raises CodecError."""
    try:
        found = msgpack.unpackb(
            body, use_list=False, max_array_len=LIST_ITEMS_MAX, max_map_len=LIST_ITEMS_MAX, max_ext_len=0
        )
    except (ValueError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise CodecError(f"not msgpack as we write it: {error}") from error
    if type(found) is not tuple:
        raise CodecError("no list at the top of a frame")
    return found


def bin_head(length: int) -> bytes:
    """The msgpack head of `length` bytes."""
    return b"\xc4" + bytes((length,)) if length < 1 << 8 else b"\xc6" + length.to_bytes(4, "big")


def list_head(count: int) -> bytes:
    """The msgpack head of a list of `count` items."""
    assert count <= LIST_ITEMS_MAX, f"a list of {count}"
    return bytes((0x90 | count,)) if count < 16 else b"\xdc" + count.to_bytes(2, "big")
