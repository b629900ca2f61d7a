"""TCP between the machines of the simulated world: ways, flows of bytes, the two ends of a connection.

A connection loses no byte and keeps their order. What is sent arrives in pieces that the seed cuts; a lost packet and a
cut way are a delay, until the sender gives up. This module is what kernels and the wire do: it runs whatever becomes of
the processes (a frozen one's input is still received), and calls no code of theirs.

    dialled -> established   the other machine's listener has room (`Dial`)
    established -> failed    reset by the other end, or given up: the next call raises, as for a real socket
    any -> closed            by the process, or since it died; what arrives afterwards is answered with a reset
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from random import Random

    from tests.simulation.world.kernel import Kernel, KernelEvent
    from tests.simulation.world.machine import VirtualMachine

MS: Final = 1_000_000
SECOND: Final = 1_000_000_000

WINDOW_BYTES: Final = 256 * 1024
"""Bytes of one direction that were sent and not read yet; at the limit the sender waits."""

RESEND_NS: Final = 200 * MS
"""Time until a lost segment is sent again, doubled each time: Linux' TCP_RTO_MIN."""

RESEND_MAX_NS: Final = 120 * SECOND
"""Longest time between two attempts: Linux' TCP_RTO_MAX."""

DIAL_RESEND_NS: Final = SECOND
"""Time until the first segment of a dial is sent again, doubled each time."""

DIAL_RESENDS: Final = 6
"""Attempts after the first; a dial fails after 127 seconds: Linux' tcp_syn_retries."""

CUT_SHARE: Final = 0.125
"""Share of writes that arrive in two pieces."""

SEGMENT_BYTES: Final = 64
"""Size of a segment without data, for ways with a bandwidth."""

FIRST_PORT: Final = 32_768
LAST_PORT: Final = 60_999
"""Ports of dials."""


def failure(number: int, words: str = "") -> OSError:
    """The OSError of an errno, of its own class."""
    return OSError(number, words or os.strerror(number))


class Watcher(Protocol):
    """Receives what happens to an end of a connection, or to a listener; outside of its machine's process."""

    def input_ready(self) -> None:
        """There is something to read, or to accept: bytes, the end, or an error."""

    def output_ready(self) -> None:
        """There is room to write, or an error."""


class Host:
    """What the kernel of one machine has of the network."""

    __slots__ = (
        "_next_port",
        "address",
        "descriptors",
        "dropped_ports",
        "ends",
        "incoming",
        "lacks_descriptors",
        "listeners",
        "machine",
        "refused_ports",
        "up",
    )

    def __init__(self, machine: VirtualMachine) -> None:
        self.machine = machine
        self.address = machine.address
        self.up = True
        self.listeners: dict[int, Listening] = {}
        self.ends: dict[End, None] = {}
        """Open ends of its process."""
        self.incoming: list[Way] = []
        self.refused_ports: set[int | None] = set()
        """Ports whose dials are refused whoever listens; None: all."""
        self.dropped_ports: set[int | None] = set()
        """Ports whose dials get no answer; None: all."""
        self.descriptors: dict[int, object] = {}
        """Number -> open socket."""
        self.lacks_descriptors = False
        """The process has no descriptor left for another socket."""
        self._next_port = FIRST_PORT

    def free_port(self) -> int:
        """A port that nobody has."""
        while True:
            port = self._next_port
            self._next_port = port + 1 if port < LAST_PORT else FIRST_PORT
            if port not in self.listeners:
                return port

    def refuses(self, port: int) -> bool:
        """A dial is refused at once."""
        return None in self.refused_ports or port in self.refused_ports

    def drops(self, port: int) -> bool:
        """A dial gets no answer."""
        return None in self.dropped_ports or port in self.dropped_ports


class Listening:
    """A listener: connections wait in it until they are accepted; with `limit` of them further dials get no answer."""

    __slots__ = ("accepted", "host", "limit", "local", "watcher")

    def __init__(self, host: Host, local: tuple[str, int], limit: int) -> None:
        self.host = host
        self.local = local
        self.limit = limit
        self.accepted: deque[End] = deque()
        self.watcher: Watcher | None = None

    def close(self) -> None:
        """Nobody accepts any more: connections that wait are reset."""
        if self.host.listeners.get(self.local[1]) is self:
            del self.host.listeners[self.local[1]]
        self.watcher = None
        while self.accepted:
            self.accepted.popleft().close(reset=True)


class Way:
    """One direction between two machines."""

    __slots__ = (
        "_busy_until_ns",
        "_kernel",
        "_low_ns",
        "_random",
        "_span_ns",
        "address",
        "answered",
        "blocked",
        "bytes_per_s",
        "cut",
        "flows",
        "latency_ns",
        "loss",
        "stalled_until_ns",
        "target",
    )

    def __init__(self, kernel: Kernel, address: str, target: Host | None, low_ns: int, high_ns: int) -> None:
        self.address = address
        """Of the target."""
        self.latency_ns = low_ns, high_ns
        self._kernel = kernel
        self._random: Random = kernel.random
        self._low_ns, self._span_ns = low_ns, high_ns - low_ns
        self._busy_until_ns = 0
        self.target = target
        """None: there is no such machine."""
        self.cut = False
        self.blocked = target is None
        """Nothing arrives: it is cut, or the machine has no power."""
        self.loss = 0.0
        """Probability that a packet is lost."""
        self.bytes_per_s: float | None = None
        self.stalled_until_ns = 0
        """Nothing arrives before that time."""
        self.flows: dict[Flow, None] = {}
        """Flows whose bytes go here."""
        self.answered: dict[Flow, None] = {}
        """Flows whose acknowledgements go here."""

    def due_ns(self, size: int, resend_ns: int = RESEND_NS) -> int:
        """When something arrives that is sent now."""
        due_ns = self._kernel.now_ns
        if self.bytes_per_s is not None:
            self._busy_until_ns = max(due_ns, self._busy_until_ns) + int(size / self.bytes_per_s * SECOND)
            due_ns = self._busy_until_ns
        due_ns += self._low_ns + int(self._random.random() * self._span_ns)
        if self.loss:
            while self._random.random() < self.loss and resend_ns <= RESEND_MAX_NS:
                due_ns += resend_ns
                resend_ns *= 2
        return due_ns if due_ns > self.stalled_until_ns else self.stalled_until_ns

    def speed_up(self) -> None:
        """Undo all that slows it down."""
        self.bytes_per_s = None
        self.stalled_until_ns = self._busy_until_ns = 0
        for flow in list(self.flows):
            flow.hurry()

    def update(self) -> None:
        """Call after `cut`, or the target's power, changed."""
        blocked = self.cut or self.target is None or not self.target.up
        if blocked == self.blocked:
            return
        self.blocked = blocked
        if not blocked:
            for flow in list(self.flows):
                flow.resume()
            for flow in list(self.answered):
                flow.acknowledged()


_END: Final = b""
"""In a flow: the sender sends no more."""

_RESET: Final = bytes(bytearray(b"reset"))
"""In a flow: the sender knows this connection no more. Compared by identity: no other bytes are this object."""


class Flow:
    """One direction of a connection."""

    __slots__ = (
        "_give_up",
        "_held",
        "_kernel",
        "_last_due_ns",
        "_next",
        "_queue",
        "_resends",
        "_withheld",
        "back",
        "bytes_per_s",
        "give_up_ns",
        "opposite",
        "receiver",
        "sender",
        "sender_waits",
        "unread",
        "way",
    )
    opposite: Flow

    def __init__(self, kernel: Kernel, sender: End, receiver: End, way: Way, back: Way, give_up_ns: int) -> None:
        self.sender = sender
        self.receiver = receiver
        self.way = way
        self.back = back
        self.give_up_ns = give_up_ns
        self.unread = 0
        """Bytes that were sent, and of which the sender does not know that they were read."""
        self.sender_waits = False
        """The sender is to be told when there is room."""
        self.bytes_per_s: float | None = None
        """How fast the receiver takes it; None: at once."""
        self._kernel = kernel
        self._queue: deque[tuple[int, int, bytes]] = deque()
        """(when it arrives, when it was sent, data) of each segment."""
        self._last_due_ns = 0
        self._next: KernelEvent | None = None
        """The next arrival."""
        self._resends = True
        """A segment that does not arrive is sent again: the sender has power."""
        self._held = False
        """The next segment was not acknowledged, and is sent again and again."""
        self._withheld = 0
        """Bytes that were read, which the sender cannot learn."""
        self._give_up: KernelEvent | None = None
        way.flows[self] = None
        back.answered[self] = None

    def not_before(self, due_ns: int) -> None:
        """What is sent arrives after `due_ns`."""
        self._last_due_ns = max(self._last_due_ns, due_ns)

    def send(self, data: bytes) -> None:
        """Send bytes, or one of the marks of this module."""
        length = len(data)
        self.unread += length
        way = self.way
        if self.bytes_per_s is not None and length > 1:
            self._trickle(data, self.bytes_per_s)
            return
        due_ns = way.due_ns(length + SEGMENT_BYTES)
        if length > 1:
            chance = way._random.random()
            if chance < CUT_SHARE:
                at = 1 + int(chance / CUT_SHARE * (length - 1))
                self._enqueue(due_ns, data[:at])
                due_ns, data = max(due_ns, way.due_ns(length - at)), data[at:]
        self._enqueue(due_ns, data)

    def _trickle(self, data: bytes, bytes_per_s: float) -> None:
        size = max(256, int(bytes_per_s / 10))
        for at in range(0, len(data), size):
            piece = data[at : at + size]
            due_ns = max(self._last_due_ns, self.way.due_ns(len(piece)))
            self._enqueue(due_ns + int(len(piece) / bytes_per_s * SECOND), piece)

    def _enqueue(self, due_ns: int, data: bytes) -> None:
        if due_ns < self._last_due_ns:
            due_ns = self._last_due_ns
        self._last_due_ns = due_ns
        now_ns = self._kernel.now_ns
        self._queue.append((due_ns, now_ns, data))
        if self._next is None and not self._held:
            self._next = self._kernel.at(due_ns - now_ns, self._arrive)

    def end(self) -> None:
        """The sender sends no more."""
        self._mark(_END)

    def reset(self) -> None:
        """The sender knows this connection no more. What waits for a way is lost, and so is this."""
        if self._held or self.way.blocked:
            self.finish()
        else:
            self._mark(_RESET)

    def lose_sender(self) -> None:
        """The sender has no power any more. What is on its way arrives, and nothing is sent again."""
        self._resends = False
        if self._held:
            self.finish()

    def _mark(self, mark: bytes) -> None:
        self._enqueue(self.way.due_ns(SEGMENT_BYTES), mark)

    def _arrive(self) -> None:
        self._next = None
        queue = self._queue
        if not queue:
            return
        if self.way.blocked:
            self._hold()
            return
        now_ns = self._kernel.now_ns
        receiver = self.receiver
        while queue and queue[0][0] <= now_ns:
            _, sent_ns, data = queue.popleft()
            if data is _RESET:
                self.finish()
                receiver.fail(errno.ECONNRESET)
                return
            if receiver.gone:
                if data or not receiver.orderly:
                    self._answer_reset(RESEND_NS)
                    return
            elif data:
                receiver.received.append(data)
                receiver.received_bytes += len(data)
            else:
                receiver.ended = True
            if not data:
                self._finished()
        if self._give_up is not None:
            self._give_up.cancel()
            self._give_up = None
        if self.back.blocked and self in self.way.flows:
            self._begin_giving_up(sent_ns)
        if queue:
            self._next = self._kernel.at(queue[0][0] - now_ns, self._arrive)
        watcher = receiver.watcher
        if watcher is not None:
            watcher.input_ready()

    def _answer_reset(self, wait_ns: int) -> None:
        """The receiver knows this connection no more; the sender learns it, now or with a later attempt."""
        self.finish()
        due_ns = max(self.back.due_ns(SEGMENT_BYTES), self.opposite._last_due_ns)
        self._kernel.at(due_ns - self._kernel.now_ns, lambda: self._reset_arrives(wait_ns))

    def _reset_arrives(self, wait_ns: int) -> None:
        if not self.back.blocked:
            self.sender.fail(errno.ECONNRESET)
        elif wait_ns <= RESEND_MAX_NS and not self.sender.gone:
            self._kernel.at(wait_ns, lambda: self._reset_arrives(2 * wait_ns))

    def _hold(self) -> None:
        if not self._resends or self._queue[-1][2] is _RESET:
            self.finish()
            return
        self._held = True
        self._begin_giving_up(self._queue[0][1])

    def _begin_giving_up(self, sent_ns: int) -> None:
        if self._give_up is None:
            delay_ns = max(0, sent_ns + self.give_up_ns - self._kernel.now_ns)
            self._give_up = self._kernel.at(delay_ns, self._given_up)

    def _given_up(self) -> None:
        self._give_up = None
        self.finish()
        self.sender.fail(errno.ETIMEDOUT)

    def resume(self) -> None:
        """The way is open again: what waited arrives with the next attempt."""
        if not self._held:
            self._probe()
            return
        self._held = False
        now_ns = self._kernel.now_ns
        wait_ns = RESEND_NS
        attempt_ns = self._queue[0][1] + wait_ns
        while attempt_ns < now_ns:
            wait_ns = min(2 * wait_ns, RESEND_MAX_NS)
            attempt_ns += wait_ns
        due_ns = max(attempt_ns - now_ns, 0) + self.way.due_ns(SEGMENT_BYTES)
        self._last_due_ns = max(self._last_due_ns, due_ns)
        self._next = self._kernel.at(due_ns - now_ns, self._arrive)

    def hurry(self) -> None:
        """Nothing slows the way down any more: what is on it arrives as if it were sent now, if that is earlier."""
        if self._held or self._next is None:
            return
        soon_ns = self.way.due_ns(SEGMENT_BYTES)
        if self._queue and self._last_due_ns > soon_ns:
            self._queue = deque((min(due_ns, soon_ns), sent_ns, data) for due_ns, sent_ns, data in self._queue)
            self._last_due_ns = soon_ns
            self._next.cancel()
            self._next = self._kernel.at(self._queue[0][0] - self._kernel.now_ns, self._arrive)

    def read(self, count: int) -> None:
        """The receiver has read so many bytes."""
        if self.back.blocked:
            self._withheld += count
            return
        self.unread -= count
        if self.sender_waits and self.unread <= WINDOW_BYTES // 2:
            self.sender_waits = False
            self._kernel.at(self.back.due_ns(SEGMENT_BYTES) - self._kernel.now_ns, self.sender.room)

    def acknowledged(self) -> None:
        """Acknowledgements pass again."""
        if self._give_up is not None and not self._held:
            self._give_up.cancel()
            self._give_up = None
        if self._withheld:
            count, self._withheld = self._withheld, 0
            self.read(count)
        self._probe()

    def _probe(self) -> None:
        """A sender without room asks for it now and then; who knows no such connection answers that."""
        if self.sender_waits and self.receiver.gone and not self._queue:
            self._answer_reset(RESEND_NS)

    def finish(self) -> None:
        """Nothing more is sent, and nobody waits for acknowledgements."""
        self._queue.clear()
        self.back.answered.pop(self, None)
        self._finished()

    def _finished(self) -> None:
        self._held = False
        self.way.flows.pop(self, None)
        if self._give_up is not None:
            self._give_up.cancel()
            self._give_up = None


class End:
    """One end of a connection; what a socket of its process reads and writes."""

    __slots__ = (
        "_broken",
        "_error",
        "closed",
        "dialled",
        "ended",
        "established",
        "host",
        "incoming",
        "local",
        "orderly",
        "outgoing",
        "received",
        "received_bytes",
        "remote",
        "shut",
        "watcher",
    )
    outgoing: Flow
    incoming: Flow

    def __init__(self, host: Host, local: tuple[str, int], remote: tuple[str, int], dialled: bool) -> None:
        self.host = host
        self.local = local
        self.remote = remote
        self.dialled = dialled
        """It is the side that dialled."""
        self.established = False
        self.received: deque[bytes] = deque()
        self.received_bytes = 0
        self.ended = False
        """The other end sends no more."""
        self.shut = False
        """This end sends no more."""
        self.closed = False
        self.orderly = False
        """It was closed without a reset."""
        self.watcher: Watcher | None = None
        self._error: int | None = None
        self._broken = False
        host.ends[self] = None

    @property
    def other(self) -> End:
        """The other end."""
        return self.outgoing.receiver

    @property
    def readable(self) -> bool:
        """`read` does not raise BlockingIOError."""
        return bool(self.received) or self.ended or self._error is not None or self._broken

    @property
    def writable(self) -> bool:
        """`write` does not raise BlockingIOError."""
        return self.established and (
            self._error is not None or self._broken or self.shut or self.outgoing.unread < WINDOW_BYTES
        )

    @property
    def gone(self) -> bool:
        """Its kernel answers what arrives with a reset."""
        return self.closed or self._broken or self._error is not None

    @property
    def works(self) -> bool:
        """It is established and did not fail."""
        return self.established and self._error is None and not self._broken

    def _check(self) -> None:
        if self._error is not None:
            number, self._error, self._broken = self._error, None, True
            raise failure(number)

    def take_error(self) -> int:
        """The errno of a failure that no call has raised yet, which is forgotten; 0: none."""
        number, self._error = self._error, None
        if number is None:
            return 0
        self._broken = True
        return number

    def read(self, limit: int, peek: bool = False) -> bytes:
        """Up to `limit` bytes; b"" at the end. Raises OSError."""
        received = self.received
        if not received:
            self._check()
            if self.ended or self._broken:
                return b""
            if not self.established:
                raise failure(errno.ENOTCONN)
            raise failure(errno.EAGAIN)
        if self.received_bytes <= limit:
            data = received[0] if len(received) == 1 else b"".join(received)
            if peek:
                return data
            received.clear()
        else:
            pieces: list[bytes] = []
            left = limit
            while left:
                piece = received.popleft()
                if len(piece) > left:
                    received.appendleft(piece[left:])
                    piece = piece[:left]
                pieces.append(piece)
                left -= len(piece)
            data = b"".join(pieces)
            if peek:
                received.appendleft(data)
                return data
        self.received_bytes -= len(data)
        self.incoming.read(len(data))
        return data

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """How many bytes of `data` were sent. Raises OSError: BlockingIOError without room."""
        self._check()
        if self.shut or self._broken:
            raise failure(errno.EPIPE)
        if not self.established:
            raise failure(errno.ENOTCONN)
        length = len(data)
        if not length:
            return 0
        flow = self.outgoing
        room = WINDOW_BYTES - flow.unread
        if length > room:
            flow.sender_waits = True
            if room <= 0:
                raise failure(errno.EAGAIN)
            data, length = memoryview(data)[:room], room
        flow.send(data if type(data) is bytes else bytes(data))
        return length

    def room(self) -> None:
        """There is room to write again."""
        if self.watcher is not None:
            self.watcher.output_ready()

    def shut_down(self) -> None:
        """Send no more. Raises OSError."""
        if not self.established or self._broken:
            raise failure(errno.ENOTCONN)
        if not self.shut:
            self.shut = True
            self.outgoing.end()

    def close(self, *, reset: bool = False) -> None:
        """The process has no such connection any more. Resets it if there are bytes that nobody read."""
        if self.closed:
            return
        self.closed = True
        self.watcher = None
        self.host.ends.pop(self, None)
        if not self.established or self._broken or self._error is not None:
            return
        if reset or self.received:
            self.received.clear()
            self.outgoing.reset()
        else:
            self.orderly = True
            if not self.shut:
                self.shut = True
                self.outgoing.end()

    def lose_power(self) -> None:
        """The machine is off: it sends nothing, also nothing again."""
        self.closed = True
        self.watcher = None
        self.host.ends.pop(self, None)
        if self.established:
            self.outgoing.lose_sender()

    def reset_by_network(self) -> None:
        """A reset arrives that the other end did not send."""
        if self.established:
            self.fail(errno.ECONNRESET)

    def fail(self, number: int) -> None:
        """The connection is broken, which the next call raises."""
        if self.established:
            self.outgoing.finish()
        if self.closed or self._broken or self._error is not None:
            return
        self._error = number
        watcher = self.watcher
        if watcher is not None:
            watcher.input_ready()
        if self.watcher is not None:
            self.watcher.output_ready()


def join(kernel: Kernel, dialled: End, accepted: End, way: Way, back: Way, give_up_ns: int) -> None:
    """Make the two flows of a connection; `way` is that of the dial."""
    there = Flow(kernel, dialled, accepted, way, back, give_up_ns)
    here = Flow(kernel, accepted, dialled, back, way, give_up_ns)
    there.opposite, here.opposite = here, there
    dialled.outgoing = accepted.incoming = there
    dialled.incoming = accepted.outgoing = here


class Dial:
    """A dial under way. `done` gets the errno of its failure, or 0; not after `end` was closed."""

    __slots__ = ("_attempt", "_back", "_done", "_end", "_give_up_ns", "_kernel", "_since_ns", "_way")

    def __init__(
        self, kernel: Kernel, end: End, way: Way, back: Way, give_up_ns: int, done: Callable[[int], None]
    ) -> None:
        self._kernel = kernel
        self._end = end
        self._way = way
        self._back = back
        self._give_up_ns = give_up_ns
        self._done = done
        self._attempt = 0
        self._since_ns = kernel.now_ns
        self._send()

    def _send(self) -> None:
        if not self._end.closed:
            due_ns = self._way.due_ns(SEGMENT_BYTES, DIAL_RESEND_NS)
            self._kernel.at(due_ns - self._kernel.now_ns, self._arrive)

    def _arrive(self) -> None:
        if self._end.closed:
            return
        host = self._way.target
        port = self._end.remote[1]
        if host is None or self._way.blocked or self._back.blocked or host.drops(port):
            self._again(self._send)
            return
        listening = host.listeners.get(port)
        if listening is not None and listening.local[0].startswith("127.") and self._end.host is not host:
            listening = None
        if listening is None or host.refuses(port):
            self._answer(errno.ECONNREFUSED)
            return
        if len(listening.accepted) >= listening.limit:
            self._again(self._send)
            return
        accepted = End(host, self._end.remote, self._end.local, dialled=False)
        accepted.established = True
        join(self._kernel, self._end, accepted, self._way, self._back, self._give_up_ns)
        accepted.outgoing.not_before(self._answer(0))
        listening.accepted.append(accepted)
        if listening.watcher is not None:
            listening.watcher.input_ready()

    def _answer(self, number: int) -> int:
        due_ns = self._back.due_ns(SEGMENT_BYTES)
        self._kernel.at(due_ns - self._kernel.now_ns, lambda: self._answered(number))
        return due_ns

    def _answered(self, number: int) -> None:
        end = self._end
        if end.closed:
            if not number:
                end.outgoing.reset()
            return
        if self._back.blocked:
            self._again(lambda: self._answered(number))
            return
        if not number:
            end.established = True
            if end._error is not None:
                number = end.take_error()
        self._done(number)

    def _again(self, attempt: Callable[[], None]) -> None:
        """Attempt it again later, unless that was the last time."""
        self._attempt += 1
        at_ns = self._since_ns + DIAL_RESEND_NS * ((1 << self._attempt) - 1)
        if self._attempt > DIAL_RESENDS:
            attempt = self._given_up
        self._kernel.at(at_ns - self._kernel.now_ns, attempt)

    def _given_up(self) -> None:
        if not self._end.closed:
            self._done(errno.ETIMEDOUT)
