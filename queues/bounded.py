"""Reading msgpack that strangers sent, in memory that the length of their message bounds.

msgpack makes room for a list when its length is declared, so a few bytes that nest lists of ten thousand would take
80 KB each; and an empty map is one byte there and sixty here. So a small message is walked over first, which allocates
nothing, and a large one is read piece by piece, each of a shape that is known before it is made. What the messages mean
stands in `queues.wire`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgpack
import zstandard

from repl.model.errors import CodecError

UNREADABLE: Final = (ValueError, TypeError, msgpack.exceptions.UnpackException, RecursionError)
"""What msgpack raises for bytes that it cannot read."""


def unpacked(body: bytes, list_max: int, map_max: int) -> Any:
    """The one value in `body`, its lists as tuples, each of at most `list_max`. Allocates at most 70 times the length
    of `body`: for small messages. Raises what UNREADABLE names."""
    walker = msgpack.Unpacker(max_buffer_size=len(body))
    walker.feed(body)
    walker.skip()  # every element that a list declares is there: its room is no larger than what came
    return msgpack.unpackb(body, use_list=False, max_ext_len=0, max_array_len=list_max, max_map_len=map_max)


def unzipped(frame: object, limit_bytes: int) -> bytes:
    """What a zstd frame holds, of a size that it tells before anything is allocated. Raises CodecError."""
    try:
        if type(frame) is not bytes or not 0 < zstandard.frame_content_size(frame) <= limit_bytes:
            raise CodecError(f"no zstd frame that says its size, of at most {limit_bytes} bytes")
        return zstandard.ZstdDecompressor().decompress(frame, max_output_size=limit_bytes)
    except (ValueError, zstandard.ZstdError) as error:
        raise CodecError(f"what is compressed cannot be read: {error}") from error


class Pieces:
    """Reads a large message of known shape. Lists inside of lists must be rows: tuples of exactly the types of `row`;
    a map is read by `entries` only. Raises CodecError, and what UNREADABLE names."""

    def __init__(self, body: bytes, row: tuple[type, ...]) -> None:
        def checked(values: tuple[Any, ...]) -> tuple[Any, ...]:
            if tuple(map(type, values)) != row:
                raise CodecError("fetch answer: an item has a wrong shape")
            return values

        self._length = len(body)
        self._unpacker = msgpack.Unpacker(
            use_list=False,
            max_buffer_size=max(1, len(body)),
            max_array_len=len(row),
            max_map_len=0,
            max_ext_len=0,
            list_hook=checked,
            object_hook=_no_map,
        )
        self._unpacker.feed(body)
        self.value: Callable[[], Any] = self._unpacker.unpack
        """The next value: a number, a text, bytes, nil, or a row."""
        self.skip: Callable[[], None] = self._unpacker.skip
        """Pass over the next value, whatever it is."""

    def entries(self, limit: int) -> int:
        """A map of so many entries begins, at most `limit`: a name and a value each."""
        count: int = self._unpacker.read_map_header()
        if count > limit:
            raise CodecError(f"a map of {count} entries, at most {limit}")
        return count

    def rows(self, limit: int) -> tuple[Any, ...]:
        """A list of at most `limit` values; what is no row among them is left to the caller."""
        count: int = self._unpacker.read_array_header()
        if count > limit:
            raise CodecError(f"a list of {count} elements, at most {limit}")
        value = self.value
        return tuple([value() for _ in range(count)])

    def end(self) -> None:
        """Nothing may follow."""
        if self._unpacker.tell() != self._length:
            raise CodecError("there are bytes behind its end")


def _no_map(_found: object) -> object:
    raise CodecError("a map where none may be")
