"""Priority lanes of one connection: what waits, and what is written next. Pure; `connection` writes it.

Urgent frames go first. Live messages and calls share the rest byte for byte. Catch-up is sent when both are empty;
otherwise it gets its minimum share in small pieces, so that it makes progress and yet can be overtaken. Order is kept
within a lane. One rate limits all catch-up of a node. The caller writes a batch only after the previous one has left
for the kernel, since written bytes cannot be overtaken.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from isthmus.repl.transport.frames import LIST_ITEMS_MAX, FrameKind, Lane, Parts, frame_head, list_head

LIVE_PIECE_BYTES: Final = 128 * 1024
"""Frames of live messages and calls are filled up to this size, and cut at it: large enough for low overhead, small
enough that a 50 MB object does not delay a ping (10 ms at 100 Mbit/s)."""

CATCH_UP_PIECE_BYTES: Final = 32 * 1024
"""Piece size of catch-up: a live message waits for at most one such piece, besides the kernel's buffer."""

BATCH_BYTES: Final = 128 * 1024
"""Bytes of one write, at least, if so many wait; a batch ends after one catch-up piece."""

JOIN_BYTES_MAX: Final = 16 * 1024
"""Frames up to this size are joined into one buffer, since each further buffer costs about as much as copying this."""

RATE_BURST_S: Final = 0.05
"""Burst of the catch-up rate: how much of it may be saved while there is nothing to send."""

RATE_WAIT_MIN_S: Final = 0.001
"""Shortest wait for the catch-up rate: the loop's clock counts in milliseconds."""


class RateCap:
    """A token bucket shared by all connections: `rate_bytes_s`, 0 for no limit. Times in seconds of one clock."""

    def __init__(self, rate_bytes_s: int) -> None:
        self._saved = 0.0
        self._seen_s: float | None = None
        self.set_rate(rate_bytes_s)
        self._saved = self._most

    def set_rate(self, rate_bytes_s: int) -> None:
        """Change the rate; savings above its burst are lost."""
        self._rate = rate_bytes_s
        self._most = max(rate_bytes_s * RATE_BURST_S, CATCH_UP_PIECE_BYTES)
        self._saved = min(self._saved, self._most)

    def wait_s(self, now_s: float) -> float:
        """How long until something may be sent; 0: now."""
        if not self._rate:
            return 0.0
        if self._seen_s is not None:
            self._saved = min(self._most, self._saved + max(0.0, now_s - self._seen_s) * self._rate)
        self._seen_s = now_s
        return 0.0 if self._saved >= 1 else max(RATE_WAIT_MIN_S, (1 - self._saved) / self._rate)

    def spend(self, length: int) -> None:
        """Count `length` bytes as sent; one piece may overdraw."""
        if self._rate:
            self._saved -= length


class Traffic:
    """Frames and bytes by lane, one way."""

    def __init__(self) -> None:
        self.frames = dict.fromkeys(Lane, 0)
        self.bytes = dict.fromkeys(Lane, 0)

    def count(self, lane: Lane, length: int) -> None:
        """Count one frame or piece of `length` bytes."""
        self.frames[lane] += 1
        self.bytes[lane] += length


class PriorityLanes:
    """The lanes of one connection. `calls`: whether its calls lane carries requests or answers."""

    def __init__(self, *, calls: FrameKind, catch_up_share_percent: int, cap: RateCap, sent: Traffic) -> None:
        assert 0 < catch_up_share_percent < 100
        self._urgent: deque[Parts] = deque()
        self._live = _Waiting(FrameKind.MESSAGES, Lane.LIVE, LIVE_PIECE_BYTES)
        self._calls = _Waiting(calls, Lane.CALLS, LIVE_PIECE_BYTES)
        self._catch_up = _Waiting(FrameKind.MESSAGES, Lane.CATCH_UP, CATCH_UP_PIECE_BYTES)
        self._by_lane = {waiting.lane: waiting for waiting in (self._live, self._calls, self._catch_up)}
        self._credit_per_byte = catch_up_share_percent / (100 - catch_up_share_percent)
        self._credit = 0.0
        self._live_ahead = 0
        self._cap = cap
        self._sent = sent
        self.urgent_bytes = 0

    def put(self, lane: Lane, item: Parts, length: int) -> None:
        """Queue an item, of `length` bytes, of a list frame."""
        waiting = self._by_lane[lane]
        waiting.items.append((length, item))
        waiting.length += length

    def put_urgent(self, kind: FrameKind, body: bytes) -> None:
        """Queue a small frame of its own."""
        self._urgent.append((frame_head(kind, Lane.URGENT, (body,)), body))
        self.urgent_bytes += len(body)

    @property
    def empty(self) -> bool:
        """True when nothing waits."""
        return not (self._live.length or self._calls.length or self._catch_up.length or self._urgent)

    def waiting_bytes(self, lane: Lane) -> int:
        """Bytes that wait in a lane."""
        return self._by_lane[lane].length

    def catch_up_wait_s(self, now_s: float) -> float:
        """How long the rate delays the catch-up lane; 0 when it does not, or nothing waits."""
        return self._cap.wait_s(now_s) if self._catch_up.length else 0.0

    def batch(self, now_s: float, parts: list[bytes | memoryview]) -> int:
        """Move the next frames out of their lanes to `parts`; returns their bytes, 0 when nothing may be sent now."""
        length = 0
        while length < BATCH_BYTES:
            if self._urgent:
                frame = self._urgent.popleft()
                self.urgent_bytes -= len(frame[1])
                parts += frame
                size = len(frame[0]) + len(frame[1])
                self._sent.count(Lane.URGENT, size)
                length += size
                continue
            chosen = self._chosen(now_s)
            if chosen is None:
                break
            size = chosen.take(parts)
            self._sent.count(chosen.lane, size)
            length += size
            if chosen is self._catch_up:
                self._cap.spend(size)
                break
            self._live_ahead += size if chosen is self._live else -size
            self._credit += size * self._credit_per_byte
            if self.empty:
                break
        return length

    def _chosen(self, now_s: float) -> _Waiting | None:
        live, calls, catch_up = self._live.length, self._calls.length, self._catch_up.length
        if not live and not calls:
            if catch_up and not self._cap.wait_s(now_s):
                return self._catch_up
            return None
        if not catch_up or self._cap.wait_s(now_s):
            self._credit = 0.0
        elif self._credit >= (piece_bytes := min(catch_up, CATCH_UP_PIECE_BYTES)):
            self._credit -= piece_bytes
            return self._catch_up
        if not live or not calls:
            self._live_ahead = 0
            return self._live if live else self._calls
        return self._live if self._live_ahead <= 0 else self._calls


class _Waiting:
    """One lane: complete items, and the rest of a body that is being cut into pieces. `length` counts both."""

    def __init__(self, kind: FrameKind, lane: Lane, piece_bytes: int) -> None:
        self.kind = kind
        self.lane = lane
        self.length = 0
        self._piece_bytes = piece_bytes
        self.items: deque[tuple[int, Parts]] = deque()
        self._rest = memoryview(b"")

    def take(self, parts: list[bytes | memoryview]) -> int:
        """Append one frame or piece to `parts`; returns its bytes."""
        if self._rest:
            return self._cut(parts)
        items = self.items
        length, item = items.popleft()
        body = [b"", *item]
        count = 1
        while items and count < LIST_ITEMS_MAX and length + items[0][0] <= self._piece_bytes - 3:
            more, item = items.popleft()
            body += item
            length += more
            count += 1
        self.length -= length
        body[0] = list_head(count)
        if length > self._piece_bytes - 3:
            self._rest = memoryview(b"".join(body))
            self.length += len(self._rest)
            return self._cut(parts)
        if length <= JOIN_BYTES_MAX:
            whole = b"".join(body)
            head = frame_head(self.kind, self.lane, (whole,))
            parts.append(head + whole)
        else:
            head = frame_head(self.kind, self.lane, body)
            parts.append(head)
            parts += body
        return len(head) + len(body[0]) + length

    def _cut(self, parts: list[bytes | memoryview]) -> int:
        piece, self._rest = self._rest[: self._piece_bytes], self._rest[self._piece_bytes :]
        self.length -= len(piece)
        head = frame_head(self.kind, self.lane, (piece,), more=bool(self._rest))
        parts += (head, piece)
        return len(head) + len(piece)
