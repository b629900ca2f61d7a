"""ZooKeeper as the metastore: connects to an ensemble, and creates the paths that every node watches.

All paths lie below ROOT/CLUSTER; `repl.metastore.metastore` defines them. `repl.metastore.zookeeper_session` has
sessions, requests and the translation of driver errors; a caller may pass another factory of sessions, which then
replaces the driver alone. `tests.support.memory_metastore` is the counterpart with injected faults.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Protocol

import structlog

from isthmus.repl.metastore.metastore import LISTED_PATHS, TreeMetastore
from isthmus.repl.metastore.port import Ambiguous, SessionState, Unavailable, VersionConflict
from isthmus.repl.metastore.tree_port import ZnodeSession
from isthmus.repl.metastore.zookeeper_session import RECONNECT_DELAY_FIRST_S, ZooKeeperSession
from isthmus.repl.model.errors import LocalFault
from isthmus.repl.unforeseen import unforeseen

log = structlog.get_logger(__name__)


class SessionFactory(Protocol):
    """Makes the session of a metastore on the running event loop; `ZooKeeperSession` is one."""

    def __call__(
        self,
        hosts: str,
        session_timeout_ms: int,
        on_session: Callable[[SessionState], None],
        on_change: Callable[[str], None],
        tls: Callable[[], ssl.SSLContext] | None,
    ) -> ZnodeSession:
        """See `ZooKeeperSession`. Raises LocalFault if `hosts` are none."""


class ZooKeeperMetastore(TreeMetastore):
    """`repl.metastore.port.Metastore` on a ZooKeeper ensemble."""

    def __init__(
        self,
        hosts: str,
        root: str,
        cluster: str,
        *,
        session_timeout_ms: int,
        connect_timeout_ms: int,
        tls: Callable[[], ssl.SSLContext] | None = None,
        session: SessionFactory = ZooKeeperSession,
    ) -> None:
        """`hosts` is "host:port,host:port"; everything lies below `root`/`cluster`; with `tls`, which gives the
        context of each connection, the session speaks TLS. `session` makes the session at `start`."""
        super().__init__(f"/{root.strip('/')}/{cluster}" if root.strip("/") else f"/{cluster}")
        self._hosts = hosts
        self._tls = tls
        self._session = session
        self._session_timeout_ms = session_timeout_ms
        self._connect_timeout_s = connect_timeout_ms / 1000
        self._link: ZnodeSession | None = None
        self._state = SessionState.SUSPENDED
        self._connected = asyncio.Event()
        self._on_session: Callable[[SessionState], None] | None = None

    async def start(self, on_session: Callable[[SessionState], None]) -> None:
        """See the port. `on_session` gets its first state just before this returns."""
        self._link = self._session(self._hosts, self._session_timeout_ms, self._session_event, self._changed, self._tls)
        self._attach(self._link)
        self._link.start()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await self._make_ground(self._link)
        except TimeoutError as error:
            await self.stop()
            raise LocalFault(
                f"no ZooKeeper answers at {self._hosts} within {self._connect_timeout_s:g} s; "
                f"check that it runs and that [metastore] hosts is right"
                f"{self._link.why_no_tls}"
            ) from error
        except LocalFault:
            await self.stop()
            raise
        self._on_session = on_session
        on_session(self._state)

    async def _make_ground(self, link: ZnodeSession) -> None:
        while True:
            await self._connected.wait()
            try:
                for path in LISTED_PATHS:
                    await link.ensure(self._base + path)
            except (VersionConflict, Ambiguous, Unavailable) as error:
                log.warning("metastore.start_retried", hosts=self._hosts, error=repr(error))
                await asyncio.sleep(RECONNECT_DELAY_FIRST_S)
            else:
                return

    @property
    def rolled_back(self) -> str:
        """See the port."""
        return "" if self._link is None else self._link.rolled_back

    async def stop(self) -> None:
        """See the port."""
        if self._link is not None:
            await self._link.stop()

    def _session_event(self, state: SessionState) -> None:
        self._state = state
        self._invalidate_caches(state)
        if state is SessionState.CONNECTED:
            self._connected.set()
        else:
            self._connected.clear()
        if self._on_session is not None:
            try:
                self._on_session(state)
            except Exception as error:  # the session goes on, and the hints of what it missed follow
                unforeseen.exception("metastore.session_bug", error, state=state.value)
