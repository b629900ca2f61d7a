"""One session with a ZooKeeper ensemble; the only module that imports kazoo.

Each request is one of kazoo's asynchronous requests, whose answer comes back to the event loop as a future. Session and
watch callbacks only put an event on the loop, in the order in which the server sent them. Driver errors are translated:
a refusal by version is VersionConflict, a write without an answer Ambiguous (docs/protocol.md R-AMBIG), a request
without effect Unavailable, a refusal that no repetition mends LocalFault. `repl.metastore.metastore` defines the paths.

While this process lives, the protocol itself refuses a server whose data went back, since each connection offers the
last zxid that was seen, over sessions, too (H32); `repl.metastore.rollback_guard` reports that as the reason. Over
restarts of this process the caller compares the epochs that it persisted.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, assert_never

import structlog
from kazoo import exceptions as zk
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.states import EventType, KazooState, KeeperState, WatchedEvent
from kazoo.retry import KazooRetry

from isthmus.repl.metastore.port import Ambiguous, SessionState, Unavailable, VersionConflict
from isthmus.repl.metastore.rollback_guard import server_zxid, watch_for_rollback
from isthmus.repl.metastore.tree_port import Create, Op, Set, Stat, VersionCheck, gather_all
from isthmus.repl.model.errors import LocalFault

log = structlog.get_logger(__name__)

RECONNECT_DELAY_FIRST_S: Final = 0.1
RECONNECT_DELAY_MAX_S: Final = 1.0
"""Pause between attempts to reconnect, which never end: a restarted ZooKeeper is found within about a second, and a
hundred nodes that try once a second do not hurt it."""

ATTEMPTS_A_SESSION: Final = 3
"""An attempt to connect, and the answer to it, are waited for a third of the session's time each: kazoo waits all of it
for the one, and for the other where there is one server. The next attempts come while the session still lives."""

REQUESTS_IN_FLIGHT_LIMIT: Final = 128
"""Requests handed to kazoo and not answered; more wait here. Bounds kazoo's queue, which has no bound of its own. kazoo
wakes its thread by a byte per request through a socket pair, whose buffer holds 278: one more would block the event
loop until that thread has read some, and bytes of requests that were dropped with a connection may still be in it."""

_UNDECIDED: Final = (zk.ConnectionLoss, zk.OperationTimeoutError, zk.SessionExpiredError, zk.SessionMovedError)
"""A write that ends so may have happened. kazoo raises SessionExpiredError also for requests that were sent."""

_REFUSED: Final = (zk.BadVersionError, zk.NodeExistsError, zk.NoNodeError, zk.NotEmptyError)


class _InOrder(SequentialThreadingHandler):  # type: ignore[misc]
    """Calls back at once, on kazoo's one remaining thread. With kazoo's own two worker threads, one for answers and one
    for watches, a watch event could come after an answer that depends on it. The callbacks here only put an event on
    the loop, so nothing waits for itself."""

    running = False

    def __init__(self, tls: Callable[[], ssl.SSLContext] | None) -> None:
        super().__init__()
        self._tls = tls
        self.tls_error: ssl.SSLError | None = None

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        """A connected socket. TLS is set up here: kazoo's own would accept the system's authorities, too."""
        kwargs["timeout"] /= ATTEMPTS_A_SESSION
        sock = super().create_connection(*args, **kwargs)
        if self._tls is None:
            return sock
        try:
            sock.settimeout(kwargs["timeout"])
            wrapped = self._tls().wrap_socket(sock, server_hostname=kwargs["hostname"])
        except OSError as error:
            sock.close()
            if isinstance(error, ssl.SSLError):
                self.tls_error = error
            raise
        self.tls_error = None
        return wrapped

    def select(self, rlist: Any, *others: Any) -> Any:
        """Bytes that TLS has already decrypted make no socket readable: kazoo would leave them until its next ping."""
        decrypted = [each for each in rlist if isinstance(each, ssl.SSLSocket) and each.pending()]
        return (decrypted, [], []) if decrypted else super().select(rlist, *others)

    def start(self) -> None:
        """No thread is needed."""

    def stop(self) -> None:
        """No thread was started."""

    def dispatch_callback(self, callback: Any) -> None:
        """A watch has fired."""
        callback.func(*callback.args)


class _ConnectProbe(ConnectionHandler):  # type: ignore[misc]
    """Ends an attempt to connect before it costs the session: a ZooKeeper that is starting may accept a connection and
    neither answer nor close it, and kazoo waits for an only server as long as the session lives."""

    def _invoke(self, timeout: float, *request: Any, **more: Any) -> Any:
        share_s = self.client._session_timeout / 1000 / ATTEMPTS_A_SESSION
        return super()._invoke(min(timeout, share_s), *request, **more)


class _Client(KazooClient):  # type: ignore[misc]
    """Keeps the newest zxid over sessions: after an expiry kazoo would offer 0, and accept any server."""

    last_zxid: int = 0

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._connection = _ConnectProbe(self, self._conn_retry.copy(), logger=self.logger)

    def _reset(self) -> None:
        seen = self.last_zxid
        super()._reset()
        self.last_zxid = seen


class ZooKeeperSession:
    """A session that is renewed for ever: lost connections are rebuilt, an expired session is followed by a new one."""

    def __init__(
        self,
        hosts: str,
        session_timeout_ms: int,
        on_session: Callable[[SessionState], None],
        on_change: Callable[[str], None],
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        """Both callbacks are called on the loop. `on_change` gets each path once per `armed` read that changed; after a
        disconnection it gets every path that was armed, since watches do not survive one."""
        self.hosts = hosts
        self._timeout_s = session_timeout_ms / 1000
        self._on_session = on_session
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._gate = asyncio.Semaphore(REQUESTS_IN_FLIGHT_LIMIT)
        self._armed: set[str] = set()
        self._stopping = False
        self._revival: asyncio.Task[Any] | None = None
        self._inquiry: asyncio.Task[None] | None = None
        self._rolled_back = ""
        self._tls = tls
        self._handler = _InOrder(tls)
        try:
            self._client: Any = _Client(
                hosts=hosts,
                timeout=self._timeout_s,
                handler=self._handler,
                connection_retry=KazooRetry(
                    max_tries=-1, delay=RECONNECT_DELAY_FIRST_S, backoff=2, max_delay=RECONNECT_DELAY_MAX_S
                ),
                command_retry=KazooRetry(max_tries=1),
                logger=_quiet_logger(),
            )
        except ValueError as error:
            raise LocalFault(f'[metastore] hosts = "{hosts}" is not "host:port,host:port": {error}') from error

    @property
    def why_no_tls(self) -> str:
        """Why the last handshake failed, as the end of a sentence; "" if none did."""
        error = self._handler.tls_error
        return "" if error is None else f"; the last TLS handshake: {' '.join(str(error).split())}"

    @property
    def rolled_back(self) -> str:
        """The report of `watch_for_rollback` since the connection was lost; "" for none."""
        return self._rolled_back

    # --- life ---

    def start(self) -> None:
        """Begin to connect; returns at once."""
        self._client.add_listener(self._session_changed)
        self._client.start_async()

    async def stop(self) -> None:
        """End the session (its ephemerals go at once, when there is a connection) and the threads."""
        self._stopping = True
        if self._revival is not None:
            await self._revival
        if self._inquiry is not None:
            self._inquiry.cancel()
            await asyncio.gather(self._inquiry, return_exceptions=True)
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        try:
            self._client.stop()
            self._client.close()
        except Exception as error:  # noqa: BLE001 - kazoo raises bare Exception when its thread does not end in time
            log.warning("metastore.stop_incomplete", hosts=self.hosts, error=repr(error))

    def session(self) -> int:
        """The session's id. Raises Unavailable if there is no connection: nothing is queued for a later one."""
        identity = None if self._stopping else self._client.client_id
        if identity is None or identity[0] is None:
            raise Unavailable(self._rolled_back or f"no connection to ZooKeeper at {self.hosts}")
        return int(identity[0])

    def _session_changed(self, state: str) -> None:
        """On kazoo's thread: only puts an event on the loop."""
        dead = state == KazooState.LOST and self._client.client_state != KeeperState.EXPIRED_SESSION
        self._post(self._session_event, state, dead)

    def _session_event(self, state: str, dead: bool) -> None:
        if self._stopping:
            return
        reported = {KazooState.CONNECTED: SessionState.CONNECTED, KazooState.SUSPENDED: SessionState.SUSPENDED}.get(
            state, SessionState.EXPIRED
        )
        log.debug("metastore.session", state=str(reported), hosts=self.hosts)
        if dead:  # kazoo's thread ended by an error of its own: the session does not continue
            log.error("metastore.driver_restarted", hosts=self.hosts)
            self._revival = self._loop.create_task(asyncio.to_thread(self._client.start_async))
        self._on_session(reported)
        if reported is not SessionState.CONNECTED:
            if self._inquiry is None:
                inquiry = watch_for_rollback(
                    self.hosts, self._seen, self._set_rolled_back, partial(server_zxid, tls=self._tls)
                )
                self._inquiry = self._loop.create_task(inquiry)
        else:
            if self._inquiry is not None:
                self._inquiry.cancel()
                self._inquiry = None
            self._rolled_back = ""
            for path in sorted(self._armed):
                self._changed(path)

    def _seen(self) -> int:
        """The newest zxid that this process has seen."""
        return int(self._client.last_zxid)

    def _set_rolled_back(self, why: str) -> None:
        self._rolled_back = why

    # --- watches ---

    def _watched(self, event: WatchedEvent) -> None:
        """On kazoo's thread: only puts an event on the loop. (A lost connection comes as a session event.)"""
        if event.type != EventType.NONE:
            self._post(self._changed, event.path)

    def _changed(self, path: str) -> None:
        self._armed.discard(path)
        self._on_change(path)

    def _post(self, callback: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:  # the loop is closed
            log.debug("metastore.event_after_close")

    # --- reads: never older than their call when preceded by a `sync`; None where nothing is ---

    async def sync(self) -> None:
        """See `repl.metastore.tree_port`."""
        await self._ask_read(lambda: self._client.sync_async("/"), sync=False)

    async def read(self, path: str, *, armed: bool, sync: bool = True) -> tuple[bytes, Stat] | None:
        """The value at `path`. Raises Unavailable, LocalFault."""
        watch = self._arm(path, armed)
        found = await self._ask_read(lambda: self._client.get_async(path, watch), sync)
        return None if found is None else (found[0], _stat(found[1]))

    async def stat(self, path: str, *, armed: bool) -> Stat | None:
        """The stat at `path`; the only read that also watches a missing path. Raises Unavailable, LocalFault."""
        watch = self._arm(path, armed)
        found = await self._ask_read(lambda: self._client.exists_async(path, watch), sync=True)
        return None if found is None else _stat(found)

    async def children(self, path: str, *, sync: bool = True) -> list[str] | None:
        """The names below `path`, watched. Raises Unavailable, LocalFault."""
        watch = self._arm(path, True)
        found: list[str] | None = await self._ask_read(lambda: self._client.get_children_async(path, watch), sync)
        return found

    async def confirm(self, path: str, version: int) -> bool:
        """See `repl.metastore.tree_port`. A majority logs a commit that only checks, even if it is refused."""
        try:
            await self.commit(f"confirming {path}", [VersionCheck(path, version)])
        except VersionConflict:
            return False
        except Ambiguous as error:
            raise Unavailable(str(error)) from error
        return True

    def _arm(self, path: str, armed: bool) -> Callable[[WatchedEvent], None] | None:
        if not armed:
            return None
        self._armed.add(path)
        return self._watched

    async def _ask_read(self, send: Callable[[], Any], sync: bool) -> Any:
        self.session()
        try:
            if sync:  # sent with the read: a connection answers in order
                _, value = await gather_all(self._ask(lambda: self._client.sync_async("/")), self._ask(send))
                return value
            return await self._ask(send)
        except zk.NoNodeError:
            return None
        except (*_UNDECIDED, TimeoutError) as error:
            raise Unavailable(f"ZooKeeper at {self.hosts} did not answer: {error!r}") from error
        except zk.ZookeeperError as error:
            raise LocalFault(f"ZooKeeper at {self.hosts} refuses a read: {error!r}") from error

    # --- writes: VersionConflict, Ambiguous, Unavailable, LocalFault ---

    async def create(self, path: str, value: bytes, *, ephemeral: bool = False) -> Stat:
        """Create what must not exist; missing parents are made."""
        return _stat(
            (
                await self._ask_write(
                    f"creating {path}",
                    lambda: self._client.create_async(
                        path, value, ephemeral=ephemeral, makepath=True, include_data=True
                    ),
                )
            )[1]
        )

    async def set(self, path: str, value: bytes, version: int) -> Stat:
        """Write where `version` is the stored one."""
        return _stat(await self._ask_write(f"writing {path}", lambda: self._client.set_async(path, value, version)))

    async def delete(self, path: str, version: int) -> None:
        """Delete where `version` is the stored one."""
        await self._ask_write(f"deleting {path}", lambda: self._client.delete_async(path, version))

    async def ensure(self, path: str) -> None:
        """Make `path` and its parents where they are missing."""
        await self._ask_write(f"making {path}", lambda: self._client.ensure_path_async(path))

    async def commit(self, what: str, ops: Sequence[Op]) -> list[Stat | None]:
        """All or nothing; the new stat of each Set."""
        transaction = self._client.transaction()
        for op in ops:
            match op:
                case VersionCheck():
                    transaction.check(op.path, op.version)
                case Set():
                    transaction.set_data(op.path, op.value, op.version)
                case Create():
                    transaction.create(op.path, op.value)
                case _:
                    assert_never(op)
        results = await self._ask_write(what, transaction.commit_async)
        for op, result in zip(ops, results, strict=False):
            if isinstance(result, _REFUSED):
                raise VersionConflict(f"{what}: {type(result).__name__} of {op.path}") from result
        errors = [result for result in results if isinstance(result, Exception)]
        if errors or len(results) != len(ops):
            raise LocalFault(f"ZooKeeper at {self.hosts} refuses {what}: {errors!r}")
        return [_stat(result) if isinstance(op, Set) else None for op, result in zip(ops, results, strict=True)]

    async def _ask_write(self, what: str, send: Callable[[], Any]) -> Any:
        self.session()
        try:
            return await self._ask(send)
        except _REFUSED as error:
            raise VersionConflict(f"{what}: {type(error).__name__}") from error
        except zk.ConnectionClosedError as error:  # raised before the request is queued
            raise Unavailable(f"{what}: the connection to ZooKeeper is closed") from error
        except (*_UNDECIDED, TimeoutError) as error:
            raise Ambiguous(f"{what}: {error!r}") from error
        except zk.ZookeeperError as error:
            raise LocalFault(f"ZooKeeper at {self.hosts} refuses {what}: {error!r}") from error

    async def _ask(self, send: Callable[[], Any]) -> Any:
        """The answer to one request of kazoo; raises kazoo's error, or TimeoutError after the session time-out."""
        answer: asyncio.Future[Any] = self._loop.create_future()

        def settle(result: Any) -> None:
            if answer.done():
                return
            if result.exception is None:
                answer.set_result(result.value)
            else:
                answer.set_exception(result.exception)

        async with self._gate, asyncio.timeout(self._timeout_s):
            send().rawlink(lambda result: self._post(settle, result))
            return await answer


def _stat(stat: Any) -> Stat:
    return Stat(stat.version, stat.czxid, stat.ephemeralOwner)


def _quiet_logger() -> logging.Logger:
    """A logger that drops kazoo's warning at each attempt to reconnect; the session events are logged here."""
    logger = logging.getLogger("isthmus.kazoo")
    logger.setLevel(logging.ERROR)
    return logger
