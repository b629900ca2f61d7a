"""What waits for one connection, and what is written next. Pure; who writes it is `connection`.

Urgent frames go first. Live messages and calls share the rest byte for byte; catch-up goes when both are empty, and
when they are not, gets its least share in small pieces, so that it ends and yet is overtaken. A lane keeps its order.
All catch-up of a node is held to one rate. The caller writes a batch only when the one before has left for the kernel:
what is handed over cannot be overtaken any more.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from isthmus.repl.transport.frames import LIST_ITEMS_MAX, FrameKind, Lane, Parts, frame_head, list_head

LIVE_PIECE_BYTES: Final = 128 * 1024
"""Frames of live messages and calls are filled up to this, and cut at it: large enough that its cost does not show,
small enough that a 50 MB object does not keep a ping waiting (10 ms at 100 Mbit/s)."""

CATCH_UP_PIECE_BYTES: Final = 32 * 1024
"""The same for catch-up: a live message waits for one of these at most, besides what the kernel holds."""

BATCH_BYTES: Final = 128 * 1024
"""What is handed over in one write, at least, when there is so much; a batch ends after one catch-up piece."""

JOIN_BYTES_MAX: Final = 16 * 1024
"""A frame up to this is copied into one piece of memory, since each further one costs about what copying this does."""

RATE_BURST_S: Final = 0.05
"""How much of the catch-up rate may be saved up while there is nothing to send."""

RATE_WAIT_MIN_S: Final = 0.001
"""Shortest wait for the catch-up rate: the loop's clock counts in milliseconds."""


class RateCap:
    """A rate over all that share this object: `rate_bytes_s`, 0 for none. Times in seconds of one clock."""

    def __init__(self, rate_bytes_s: int) -> None:
        self._saved = 0.0
        self._seen_s: float | None = None
        self.set_rate(rate_bytes_s)
        self._saved = self._most

    def set_rate(self, rate_bytes_s: int) -> None:
        """Go by another rate from now on; what was saved above its burst is forfeited."""
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
        """So much is sent; one piece may overdraw."""
        if self._rate:
            self._saved -= length


class Traffic:
    """Frames and bytes by lane, one way."""

    def __init__(self) -> None:
        self.frames = dict.fromkeys(Lane, 0)
        self.bytes = dict.fromkeys(Lane, 0)

    def count(self, lane: Lane, length: int) -> None:
        """One frame (or piece) of `length` bytes went by."""
        self.frames[lane] += 1
        self.bytes[lane] += length


class PriorityLanes:
    """The lanes of one connection. `calls` says what its calls lane carries: requests, or answers."""

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
        """Nothing waits."""
        return not (self._live.length or self._calls.length or self._catch_up.length or self._urgent)

    def waiting_bytes(self, lane: Lane) -> int:
        """What waits in a lane, without what was handed over."""
        return self._by_lane[lane].length

    def catch_up_wait_s(self, now_s: float) -> float:
        """How long the rate holds back what waits in the catch-up lane; 0 when nothing does or nothing waits."""
        return self._cap.wait_s(now_s) if self._catch_up.length else 0.0

    def batch(self, now_s: float, parts: list[bytes | memoryview]) -> int:
        """Append what is to be written next to `parts`, taken out of its lanes; its bytes, 0 when nothing may be sent
        at `now_s`."""
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
        elif self._credit >= (owed := min(catch_up, CATCH_UP_PIECE_BYTES)):
            self._credit -= owed
            return self._catch_up
        if not live or not calls:
            self._live_ahead = 0
            return self._live if live else self._calls
        return self._live if self._live_ahead <= 0 else self._calls


class _Waiting:
    """One lane: whole items, and the rest of a body that is being cut into pieces. `length` is all of its bytes."""

    def __init__(self, kind: FrameKind, lane: Lane, piece_bytes: int) -> None:
        self.kind = kind
        self.lane = lane
        self.length = 0
        self._piece_bytes = piece_bytes
        self.items: deque[tuple[int, Parts]] = deque()
        self._rest = memoryview(b"")

    def take(self, parts: list[bytes | memoryview]) -> int:
        """Append one frame or piece to `parts`; its bytes."""
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
