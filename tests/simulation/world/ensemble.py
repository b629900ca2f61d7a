"""The metastore's ensemble of a simulated cluster: sessions, watches and faults in virtual time.

The product's `ZooKeeperMetastore` runs above it; only its driver (`repl.metastore.zookeeper_session`) is replaced, by
`EnsembleSession`. The data are a `tests.support.memory_metastore.MemoryEnsemble`, which has ZooKeeper's rules for
writes. One connection is two queues, in which requests, answers, watch events and the end of the connection keep their
order, so a client gets the event of a change before it reads any later state. What a driver's own thread does (pings,
attempts to connect) are events of the client's machine: a frozen machine sends no pings and finds out afterwards that
its session has expired; a killed one never does, and its ephemerals go when the session's time is over. Every delay is
drawn from the kernel's chance.

The server of a node may lag behind (`lag`): it shows an older state, and the events of later changes are still to come,
until a sync, or a write of that node, makes it catch up.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from isthmus.repl.metastore.port import Ambiguous, SessionState, Unavailable, VersionConflict
from isthmus.repl.metastore.rollback_guard import watch_for_rollback
from isthmus.repl.metastore.tree_port import Op, Stat
from isthmus.repl.metastore.zookeeper import SessionFactory
from isthmus.repl.metastore.zookeeper_session import RECONNECT_DELAY_FIRST_S, RECONNECT_DELAY_MAX_S
from tests.support.memory_metastore import MemoryEnsemble, WriteFault

NS: Final = 1_000_000_000

LATENCY_NS: Final = 50_000
"""The least time of a message in one direction; up to five times that, by chance."""

WRITE_NS: Final = 300_000
"""The least time until a majority has logged a write; up to five times that, by chance."""

LATE_NS: Final = 50_000_000
"""A write that arrives after its connection is lost does so within this time, before the client connects again."""

SHARES: Final = 3
"""A client pings once in a third of its session's time and gives a connection up when a ping is not answered by the
next; an attempt to connect takes a third at most. So does kazoo (`zookeeper_session.ATTEMPTS_A_SESSION`)."""

ZXID_EPOCH_BITS: Final = 32
"""An election begins a new epoch in the upper half of the zxid."""


class Timer(Protocol):
    """A scheduled event."""

    def cancel(self) -> object: ...


class NodeMachine(Protocol):
    """The machine of a node."""

    @property
    def name(self) -> str: ...


class EventSource(Protocol):
    """What the ensemble needs of `tests.simulation.world.kernel.Kernel`."""

    @property
    def now_ns(self) -> int: ...
    @property
    def random(self) -> random.Random: ...
    def at(self, delay_ns: int, callback: Callable[[], object], machine: Any = None) -> Timer: ...


@dataclass(frozen=True)
class Snapshot:
    """An ensemble's data at one moment: the tree, and (id, node, time-out) of each session."""

    tree: MemoryEnsemble
    sessions: tuple[tuple[int, str, int], ...]


class _Change(NamedTuple):
    """A change of the tree; `parent` and `before` as its listeners get them."""

    zxid: int
    path: str
    parent: str
    before: tuple[bytes, Stat] | None


class _ServerSession:
    """A session as the servers know it."""

    __slots__ = ("connection", "expiry", "heard_ns", "id", "node", "timeout_ns")

    def __init__(self, number: int, node: str, timeout_ns: int) -> None:
        self.id = number
        self.node = node
        self.timeout_ns = timeout_ns
        self.connection: _Connection | None = None
        self.heard_ns = 0
        self.expiry: Timer | None = None


class _Request:
    """A call on its way. `act(tree, connection)` is done by the servers; `stale`: a state that lags behind will do."""

    __slots__ = ("act", "answer", "lost", "stale")

    def __init__(
        self,
        act: Callable[[MemoryEnsemble, _Connection], Any],
        answer: asyncio.Future[Any],
        lost: type[Ambiguous] | type[Unavailable],
        stale: bool = False,
    ) -> None:
        self.act = act
        self.answer = answer
        self.lost = lost
        self.stale = stale


class _Connection:
    """One connection; either end may be closed before the other notices."""

    __slots__ = (
        "behind", "client", "client_open", "data", "down", "down_at_ns", "held_down", "held_up", "names", "pending",
        "server_open", "session", "up", "up_at_ns",
    )  # fmt: skip

    def __init__(self, client: EnsembleSession) -> None:
        self.client = client
        self.session: _ServerSession | None = None
        self.client_open = self.server_open = True
        self.data: dict[str, None] = {}
        """Paths whose value is watched."""
        self.names: dict[str, None] = {}
        """Paths whose names below are watched."""
        self.behind: deque[_Change] = deque()
        """Changes that its server has not applied yet, the oldest first."""
        self.pending: dict[_Request, None] = {}
        self.up: deque[Callable[[], None]] = deque()
        self.down: deque[Callable[[], None]] = deque()
        self.up_at_ns = self.down_at_ns = 0
        self.held_up = self.held_down = 0
        """Arrivals that wait for the end of a cut."""

    def read(self, tree: MemoryEnsemble, path: str) -> tuple[bytes, Stat] | None:
        """The value at `path` as its server has it."""
        for change in self.behind:
            if change.path == path:
                return change.before
        return tree.read(path)

    def children(self, tree: MemoryEnsemble, path: str) -> list[str] | None:
        """The names below `path` as its server has them."""
        names = tree.children(path)
        if not self.behind:
            return names
        if path and self.read(tree, path) is None:
            return None
        found = dict.fromkeys(names or ())
        for change in reversed(self.behind):
            if change.parent == path:
                name = change.path.rpartition("/")[2]
                if change.before is None:
                    found.pop(name, None)
                else:
                    found[name] = None
        return list(found)

    def zxid(self, tree: MemoryEnsemble) -> int:
        """The last change that its server has applied."""
        return self.behind[0].zxid - 1 if self.behind else tree.zxid


class Ensemble:
    """The ensemble of one cluster. Acts take effect at once; who is affected finds out when messages arrive."""

    def __init__(self, kernel: EventSource) -> None:
        self.tree = MemoryEnsemble()
        self.running = True
        self._kernel = kernel
        self._sessions: dict[int, _ServerSession] = {}
        self._connections: list[_Connection] = []
        self._cut: set[str] = set()
        self._slow_ns = 0
        self._lag_ns: dict[str, int] = {}
        self._faults: dict[str, deque[WriteFault]] = {}
        self._next: Snapshot | None = None
        self.tree.listen(self._changed)

    def session_of(self, machine: NodeMachine) -> SessionFactory:
        """The factory of sessions for a process on `machine`, where its driver runs, too. Acts know it by its name."""

        def make(
            hosts: str,
            session_timeout_ms: int,
            on_session: Callable[[SessionState], None],
            on_change: Callable[[str], None],
            tls: Callable[[], ssl.SSLContext] | None,
        ) -> EnsembleSession:
            return EnsembleSession(self, machine, hosts, session_timeout_ms, on_session, on_change)

        return make

    # --- acts ---

    def cut(self, node: str) -> None:
        """Stop all messages between `node` and the servers; nobody is told. What is under way arrives after `heal`, if
        both ends have kept the connection."""
        self._cut.add(node)

    def heal(self, node: str) -> None:
        """End a cut. Of requests on a connection that the client has given up, by chance all or none still arrive."""
        self._cut.discard(node)
        for connection in self._connections:
            if connection.client.node != node:
                continue
            held_up, connection.held_up = connection.held_up, 0
            held_down, connection.held_down = connection.held_down, 0
            if not connection.client_open and self._kernel.random.random() < 0.5:
                self._close(connection)
                continue
            for _ in range(held_up):
                self._kernel.at(0, partial(self._arrive_up, connection))
            for _ in range(held_down):
                self._kernel.at(0, partial(self._arrive_down, connection), connection.client.machine)

    def reset(self, node: str) -> None:
        """Break the connections of `node`: what has not arrived is lost. The session lives on."""
        for connection in [each for each in self._connections if each.client.node == node and each.server_open]:
            self._close(connection)

    def expire(self, node: str) -> None:
        """End the sessions of `node`, whose ephemerals go at once."""
        for session in [each for each in self._sessions.values() if each.node == node]:
            self._end_session(session)

    def spoil(self, node: str, *faults: WriteFault) -> None:
        """The next writes of `node` end so, one after the other; each costs its connection."""
        self._faults.setdefault(node, deque()).extend(faults)

    def slow(self, delay_ms: float) -> None:
        """Delay each answer by `delay_ms` more from now on; 0 ends that."""
        self._slow_ns = int(delay_ms * 1_000_000)

    def lag(self, node: str, delay_ms: float) -> None:
        """The server of `node` applies changes `delay_ms` late from now on; 0 ends that."""
        self._lag_ns[node] = int(delay_ms * 1_000_000)

    def stop(self) -> None:
        """Stop all servers. Sessions and data are kept."""
        self.running = False
        for session in self._sessions.values():
            self._disarm(session)
        for connection in [each for each in self._connections if each.server_open]:
            self._close(connection)

    def start(self, elections: int = 0) -> None:
        """Start all servers. Every session has its whole time again. After `elections` of a leader zxids begin anew
        above all before, and a client cannot tell by them that data went back; with none (as with a single server) they
        go on from the data."""
        if self._next is not None:
            self._return_to(self._next)
            self._next = None
        self.tree.zxid = ((self.tree.zxid >> ZXID_EPOCH_BITS) + elections << ZXID_EPOCH_BITS) + (
            0 if elections else self.tree.zxid & (1 << ZXID_EPOCH_BITS) - 1
        )
        self.running = True
        for session in self._sessions.values():
            self._arm(session)

    def snapshot(self) -> Snapshot:
        """A copy of the data as they are now."""
        return Snapshot(
            self.tree.copied(), tuple((each.id, each.node, each.timeout_ns) for each in self._sessions.values())
        )

    def put_back(self, snapshot: Snapshot) -> None:
        """The next start finds the data of `snapshot`: later writes and sessions are lost."""
        self._next = snapshot

    def lose_everything(self) -> None:
        """The next start finds no data."""
        self._next = Snapshot(MemoryEnsemble(), ())

    def _return_to(self, snapshot: Snapshot) -> None:
        assert not self.running, "stop() comes first"
        self.tree.go_back(snapshot.tree)
        self._sessions = {number: _ServerSession(number, node, ns) for number, node, ns in snapshot.sessions}

    # --- messages ---

    def _delay_ns(self) -> int:
        return int(LATENCY_NS * (1 + 4 * self._kernel.random.random()))

    def send_up(self, connection: _Connection, callback: Callable[[], None]) -> None:
        """Send a message to the servers."""
        connection.up.append(callback)
        now_ns = self._kernel.now_ns
        connection.up_at_ns = at_ns = max(now_ns + self._delay_ns(), connection.up_at_ns)
        self._kernel.at(at_ns - now_ns, partial(self._arrive_up, connection))

    def send_down(self, connection: _Connection, callback: Callable[[], None], more_ns: int = 0) -> None:
        """Send a message to the client."""
        connection.down.append(callback)
        now_ns = self._kernel.now_ns
        connection.down_at_ns = at_ns = max(now_ns + self._delay_ns() + more_ns, connection.down_at_ns)
        self._kernel.at(at_ns - now_ns, partial(self._arrive_down, connection), connection.client.machine)

    def _arrive_up(self, connection: _Connection) -> None:
        if connection.client.node in self._cut:
            connection.held_up += 1
        elif connection.server_open:
            if connection.session is not None:
                connection.session.heard_ns = self._kernel.now_ns
            connection.up.popleft()()

    def _arrive_down(self, connection: _Connection) -> None:
        if connection.client.node in self._cut:
            connection.held_down += 1
        elif connection.client_open:
            connection.down.popleft()()

    # --- the servers ---

    def dial(self, client: EnsembleSession) -> _Connection:
        """A new connection of `client`, not accepted yet."""
        connection = _Connection(client)
        self._connections = [each for each in self._connections if each.client_open or each.server_open]
        self._connections.append(connection)
        self.send_up(connection, partial(self._accept, connection, client.id, client.seen_zxid))
        return connection

    def _accept(self, connection: _Connection, number: int, seen_zxid: int) -> None:
        client = connection.client
        if not self.running or seen_zxid > self.tree.zxid:  # H32: a server refuses a client that has seen more
            self._close(connection)
            return
        if number and number not in self._sessions:
            connection.server_open = False
            self.send_down(connection, partial(client.on_expired, connection))
            return
        if number:
            session = self._sessions[number]
        else:
            number = self.tree.new_session()
            session = self._sessions[number] = _ServerSession(number, client.node, client.timeout_ns)
        session.connection, connection.session = connection, session
        self._arm(session)
        self.send_down(connection, partial(client.on_connected, connection, number))

    def _arm(self, session: _ServerSession) -> None:
        session.heard_ns = self._kernel.now_ns
        if session.expiry is None:
            session.expiry = self._kernel.at(session.timeout_ns, partial(self._check_expiry, session))

    def _disarm(self, session: _ServerSession) -> None:
        if session.expiry is not None:
            session.expiry.cancel()
            session.expiry = None

    def _check_expiry(self, session: _ServerSession) -> None:
        left_ns = session.heard_ns + session.timeout_ns - self._kernel.now_ns
        if left_ns > 0:
            session.expiry = self._kernel.at(left_ns, partial(self._check_expiry, session))
        else:
            self._end_session(session)

    def _end_session(self, session: _ServerSession) -> None:
        self._disarm(session)
        del self._sessions[session.id]
        self.tree.end_session(session.id)
        if session.connection is not None:
            self._close(session.connection)

    def _close(self, connection: _Connection) -> None:
        """Close the servers' end."""
        if not connection.server_open:
            return
        connection.server_open = False
        if connection.session is not None and connection.session.connection is connection:
            connection.session.connection = None
        if connection.client.is_over():
            connection.client_open = False
        else:
            self.send_down(connection, partial(connection.client.on_lost, connection))

    def hang_up(self, connection: _Connection) -> None:
        """The client closes its end; the servers find out when that arrives."""
        connection.client_open = False
        self.send_up(connection, partial(self._close, connection))

    def request(self, connection: _Connection, request: _Request) -> None:
        """Send a request."""
        connection.pending[request] = None
        self.send_up(connection, partial(self._do, connection, request))

    def _do(self, connection: _Connection, request: _Request) -> None:
        more_ns = self._slow_ns
        if request.lost is Ambiguous:
            faults = self._faults.get(connection.client.node)
            if faults:
                self._do_badly(connection, request, faults.popleft())
                return
            more_ns += int(WRITE_NS * (1 + 4 * self._kernel.random.random()))
        if connection.behind and not request.stale:
            self._catch_up(connection, self.tree.zxid)
        error: Exception | None = None
        value = None
        try:
            value = request.act(self.tree, connection)
        except VersionConflict as refusal:
            error = refusal
        if connection.behind and not request.stale:
            self._catch_up(connection, self.tree.zxid)  # with its own write
        zxid = connection.zxid(self.tree)
        answered = partial(connection.client.on_answer, connection, request, value, error, zxid)
        self.send_down(connection, answered, more_ns)

    def _do_badly(self, connection: _Connection, request: _Request, fault: WriteFault) -> None:
        def do() -> None:
            try:
                if self.running and connection.session is not None and connection.session.id in self._sessions:
                    request.act(self.tree, connection)
            except VersionConflict:
                return

        if fault is WriteFault.ANSWER_LOST:
            do()
        elif fault is WriteFault.LATE:
            self._kernel.at(int(LATE_NS * self._kernel.random.random()), do)
        self._close(connection)

    def close_session(self, _tree: MemoryEnsemble, connection: _Connection) -> None:
        """A request: the client ends its session."""
        session = connection.session
        if session is not None and self._sessions.get(session.id) is session:
            session.connection = None
            self._end_session(session)

    def pong(self, connection: _Connection) -> None:
        """A ping has arrived."""
        self.send_down(connection, connection.client.on_pong)

    def _changed(self, path: str, parent: str, before: tuple[bytes, Stat] | None) -> None:
        change = _Change(self.tree.zxid, path, parent, before)
        for connection in self._connections:
            if not connection.server_open:
                continue
            lag_ns = self._lag_ns.get(connection.client.node, 0)
            if lag_ns or connection.behind:
                connection.behind.append(change)
                self._kernel.at(lag_ns, partial(self._catch_up, connection, change.zxid))
            else:
                self._fire(connection, change)

    def _catch_up(self, connection: _Connection, zxid: int) -> None:
        """Its server applies all changes up to `zxid`."""
        while connection.behind and connection.behind[0].zxid <= zxid:
            self._fire(connection, connection.behind.popleft())

    def _fire(self, connection: _Connection, change: _Change) -> None:
        """Send the events of what is watched and has changed."""
        path, parent = change.path, change.parent
        if path in connection.data:
            del connection.data[path]
            self.send_down(connection, partial(connection.client.on_watch, path))
        if parent in connection.names:
            del connection.names[parent]
            self.send_down(connection, partial(connection.client.on_watch, parent))
        if parent and change.before is not None and path in connection.names:  # it was deleted
            del connection.names[path]
            self.send_down(connection, partial(connection.client.on_watch, path))

    def server_zxid(self, node: str) -> int | None:
        """What a server tells a process of `node` that asks for its zxid; None if it does not answer."""
        return self.tree.zxid if self.running and node not in self._cut else None


class EnsembleSession:
    """`repl.metastore.tree_port.ZnodeSession` of one process, as `ZooKeeperSession` behaves.

    Methods whose names begin with `on_` are what the driver's thread does; they reach the loop of the process by
    `call_soon_threadsafe` only, in their order."""

    why_no_tls = ""

    def __init__(
        self,
        ensemble: Ensemble,
        machine: NodeMachine,
        hosts: str,
        session_timeout_ms: int,
        on_session: Callable[[SessionState], None],
        on_change: Callable[[str], None],
    ) -> None:
        self.node = machine.name
        self.machine = machine
        self.hosts = hosts
        self.timeout_ns = session_timeout_ms * 1_000_000
        self.id = 0
        """The session's; 0 before there is one."""
        self.seen_zxid = 0
        self._ensemble = ensemble
        self._kernel = ensemble._kernel
        self._on_session = on_session
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._armed: set[str] = set()
        self._connection: _Connection | None = None
        self._trying: _Connection | None = None
        self._trying_timer: Timer | None = None
        self._delay_s = RECONNECT_DELAY_FIRST_S
        self._unanswered_ping = False
        self._stopping = False
        self._over = False
        self._inquiry: asyncio.Task[None] | None = None
        self._rolled_back = ""

    @property
    def rolled_back(self) -> str:
        """See `ZnodeSession`."""
        return self._rolled_back

    # --- life ---

    def start(self) -> None:
        """See `ZnodeSession`."""
        self._kernel.at(self._ensemble._delay_ns(), self._attempt, self.machine)

    async def stop(self) -> None:
        """See `ZnodeSession`. Without a connection the session ends when its time is over."""
        self._stopping = True
        if self._inquiry is not None:
            self._inquiry.cancel()
            await asyncio.gather(self._inquiry, return_exceptions=True)
        connection = self._connection
        if connection is not None:
            request = _Request(self._ensemble.close_session, self._loop.create_future(), Unavailable)
            self._ensemble.request(connection, request)
            with contextlib.suppress(Unavailable):  # the connection broke: the session ends when its time is over
                await request.answer
        self._over = True
        for each in (self._connection, self._trying):
            if each is not None:
                self._ensemble.hang_up(each)
        self._connection = self._trying = None

    def is_over(self) -> bool:
        """Whether the process has stopped this session, or ended itself."""
        return self._over or self._loop.is_closed()

    def session(self) -> int:
        """See `ZnodeClient`."""
        if self._connection is None or self._stopping:
            raise Unavailable(self._rolled_back or f"no connection to ZooKeeper at {self.hosts}")
        return self.id

    def _post(self, callback: Callable[..., object], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:  # the process has ended
            self._over = True

    def _session_event(self, state: SessionState) -> None:
        if self._stopping:
            return
        self._on_session(state)
        if state is not SessionState.CONNECTED:
            if self._inquiry is None:
                inquiry = watch_for_rollback(self.hosts, lambda: self.seen_zxid, self._set_rolled_back, self._zxid_of)
                self._inquiry = self._loop.create_task(inquiry)
            return
        if self._inquiry is not None:
            self._inquiry.cancel()
            self._inquiry = None
        self._rolled_back = ""
        for path in sorted(self._armed):
            self._changed(path)

    def _set_rolled_back(self, why: str) -> None:
        self._rolled_back = why

    async def _zxid_of(self, _host: str) -> int | None:
        await asyncio.sleep(2 * self._ensemble._delay_ns() / NS)
        return self._ensemble.server_zxid(self.node)

    def _changed(self, path: str) -> None:
        self._armed.discard(path)
        self._on_change(path)

    # --- the driver ---

    def _attempt(self) -> None:
        if self.is_over():
            return
        self._trying = self._ensemble.dial(self)
        self._trying_timer = self._kernel.at(
            self.timeout_ns // SHARES, partial(self._give_up_attempt, self._trying), self.machine
        )

    def _give_up_attempt(self, connection: _Connection) -> None:
        if connection is self._trying and not self.is_over():
            self._ensemble.hang_up(connection)
            self._attempt_failed()

    def _attempt_failed(self) -> None:
        self._end_attempt()
        self._kernel.at(int(self._delay_s * NS * (1 - 0.4 * self._kernel.random.random())), self._attempt, self.machine)
        self._delay_s = min(2 * self._delay_s, RECONNECT_DELAY_MAX_S)

    def _end_attempt(self) -> None:
        self._trying = None
        if self._trying_timer is not None:
            self._trying_timer.cancel()
            self._trying_timer = None

    def on_connected(self, connection: _Connection, number: int) -> None:
        """The servers have accepted the connection, for this session."""
        self._end_attempt()
        self._delay_s = RECONNECT_DELAY_FIRST_S
        self._connection, self.id, self._unanswered_ping = connection, number, False
        self._kernel.at(self.timeout_ns // SHARES, partial(self._ping, connection), self.machine)
        self._post(self._session_event, SessionState.CONNECTED)

    def on_expired(self, connection: _Connection) -> None:
        """The servers do not know this session any more."""
        connection.client_open = False
        self.id = 0
        self._post(self._session_event, SessionState.EXPIRED)
        self._delay_s = RECONNECT_DELAY_FIRST_S
        self._attempt_failed()

    def on_lost(self, connection: _Connection) -> None:
        """The connection is closed."""
        connection.client_open = False
        if connection is self._trying:
            self._attempt_failed()
        elif connection is self._connection:
            self._connection = None
            pending, connection.pending = connection.pending, {}
            for request in pending:
                self._post(_settle, request.answer, None, request.lost("the connection to ZooKeeper broke"))
            self._post(self._session_event, SessionState.SUSPENDED)
            if not self.is_over():
                self._attempt_failed()

    def on_pong(self) -> None:
        """The ping is answered."""
        self._unanswered_ping = False

    def _ping(self, connection: _Connection) -> None:
        if connection is not self._connection or self.is_over():
            return
        if self._unanswered_ping:
            self._ensemble.hang_up(connection)
            self.on_lost(connection)
            return
        self._unanswered_ping = True
        self._ensemble.send_up(connection, partial(self._ensemble.pong, connection))
        self._kernel.at(self.timeout_ns // SHARES, partial(self._ping, connection), self.machine)

    def on_watch(self, path: str) -> None:
        """Something watched has changed."""
        self._post(self._changed, path)

    def on_answer(
        self, connection: _Connection, request: _Request, value: Any, error: Exception | None, zxid: int
    ) -> None:
        """A request is answered."""
        self.seen_zxid = max(self.seen_zxid, zxid)
        connection.pending.pop(request, None)
        self._post(_settle, request.answer, value, error)

    # --- calls ---

    def _ask(
        self,
        act: Callable[[MemoryEnsemble, _Connection], Any],
        lost: type[Ambiguous] | type[Unavailable],
        stale: bool = False,
    ) -> asyncio.Future[Any]:
        connection = self._connection
        if connection is None or self._stopping:
            self.session()
        assert connection is not None
        answer = self._loop.create_future()
        self._ensemble.request(connection, _Request(act, answer, lost, stale))
        return answer

    async def sync(self) -> None:
        """See `ZnodeClient`."""
        await self._ask(_nothing, Unavailable)

    async def read(self, path: str, *, armed: bool, sync: bool = True) -> tuple[bytes, Stat] | None:
        """See `ZnodeClient`. A missing path is not watched."""
        if armed:
            self._armed.add(path)

        def act(tree: MemoryEnsemble, connection: _Connection) -> tuple[bytes, Stat] | None:
            found = connection.read(tree, path)
            if armed and found is not None:
                connection.data[path] = None
            return found

        found: tuple[bytes, Stat] | None = await self._ask(act, Unavailable, not sync)
        return found

    async def stat(self, path: str, *, armed: bool) -> Stat | None:
        """See `ZnodeClient`."""
        if armed:
            self._armed.add(path)

        def act(tree: MemoryEnsemble, connection: _Connection) -> Stat | None:
            if armed:
                connection.data[path] = None
            found = tree.read(path)
            return None if found is None else found[1]

        found: Stat | None = await self._ask(act, Unavailable)
        return found

    async def children(self, path: str, *, sync: bool = True) -> list[str] | None:
        """See `ZnodeClient`. A missing path is not watched."""
        self._armed.add(path)

        def act(tree: MemoryEnsemble, connection: _Connection) -> list[str] | None:
            names = connection.children(tree, path)
            if names is not None:
                connection.names[path] = None
            return names

        names: list[str] | None = await self._ask(act, Unavailable, not sync)
        return names

    async def confirm(self, path: str, version: int) -> bool:
        """See `ZnodeClient`."""

        def act(tree: MemoryEnsemble, _connection: _Connection) -> bool:
            found = tree.read(path)
            return found is not None and found[1].version == version

        return bool(await self._ask(act, Unavailable))

    async def create(self, path: str, value: bytes, *, ephemeral: bool = False) -> Stat:
        """See `ZnodeClient`."""

        def act(tree: MemoryEnsemble, connection: _Connection) -> Stat:
            assert connection.session is not None
            return tree.create(path, value, connection.session.id if ephemeral else 0)

        made: Stat = await self._ask(act, Ambiguous)
        return made

    async def set(self, path: str, value: bytes, version: int) -> Stat:
        """See `ZnodeClient`."""
        written: Stat = await self._ask(lambda tree, _: tree.set(path, value, version), Ambiguous)
        return written

    async def delete(self, path: str, version: int) -> None:
        """See `ZnodeClient`."""
        await self._ask(lambda tree, _: tree.delete(path, version), Ambiguous)

    async def ensure(self, path: str) -> None:
        """See `ZnodeClient`."""
        await self._ask(lambda tree, _: tree.ensure(path), Ambiguous)

    async def commit(self, what: str, ops: Sequence[Op]) -> list[Stat | None]:
        """See `ZnodeClient`."""
        done: list[Stat | None] = await self._ask(lambda tree, _: tree.commit(ops), Ambiguous)
        return done


def _nothing(_tree: MemoryEnsemble, _connection: _Connection) -> None:
    """A sync needs nothing but its place in the order."""


def _settle(answer: asyncio.Future[Any], value: Any, error: Exception | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(value)
    else:
        answer.set_exception(error)
