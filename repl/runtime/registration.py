"""Registration of this process in the metastore, and the check of local copies at a start.

A copy that lost durable data, or that cannot be trusted after a power loss, takes a new gen before the node registers,
so that it is not elected for data that it no longer holds (docs/protocol.md R-GEN). A copy that does not exist yet gets
the directory's spare gen. `repl.runtime.replica_lifecycle` opens the copies.

The registration shows the cluster that the node is live, and its copies' gens. One attempt runs at a time, always with
the data directory's current gens: a gen is durable there before it is registered. After a new or renewed gen
`register` is called again; in the same session that keeps `session_id`.

    registered     `session_id` is not 0
    unregistered   -> registered      `register` succeeded: at the start, after an expired session, after a loss
    registered     -> unregistered    the session expired, or another process has the name (`why` says which)
    registered     -> registered      the znode was removed (R-SUSPECT, or by hand): made again, with another session id

A starting process takes its node's name from any other process: usually its own predecessor, whose session is not over
yet. Later it replaces only registrations of its own. So of two processes with one name the one that started later keeps
it, and the other one registers when that session is over. Until then `taken` is True, and this process must not dial
other nodes: they know it by its name only, and would drop the connection of the process that has the name.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final, Protocol

import structlog

from isthmus.repl.metastore.port import Ambiguous, Metastore, NameTaken, Unavailable, VersionConflict
from isthmus.repl.model.errors import IsthmusError
from isthmus.repl.model.record import PartitionRecord, Registration
from isthmus.repl.replog.port import RecoveredPartition
from isthmus.repl.storage.identity import NodeIdentity
from isthmus.repl.store.port import Store
from isthmus.repl.telemetry import Family
from isthmus.repl.transport.port import Links
from isthmus.repl.unforeseen import unforeseen

log = structlog.get_logger(__name__)


WITHDRAW_S: Final = 2.0
"""How long a stopping process waits for the metastore to record that."""

RETRY_MS: Final = 500
"""Pause before the next attempt of an unregistered node: one or two reads for the metastore, and a node whose name has
become free is back within a second."""

OWN_SESSIONS_MAX: Final = 4
"""Sessions of this process whose registrations it may replace: the last one that could still exist, and some more."""

HELP: Final[Mapping[str, Family]] = {
    "isthmus_registered": Family(
        "1 while this process is registered in the metastore as its node.", "flag", "partitions"
    ),
    "isthmus_registrations_lost_total": Family(
        "Registrations that this process lost though its session lived, by cause: removed (the "
        "znode was gone), taken (another process has the name).",
        "registrations",
        "partitions",
        ("cause",),
    ),
}


class SessionListener(Protocol):
    """Follows the session under which this process is registered; `repl.runtime.runtime.Runtime`."""

    def session_started(self, session: int, /) -> None:
        """This process is registered under `session`."""

    def session_expired(self) -> None:
        """The registration is over: with its session, or since another process has the name."""


class Registrar:
    """Registers `template`, completed with the directory's gens, and keeps it registered."""

    def __init__(self, metastore: Metastore, identity: NodeIdentity, template: Registration, links: Links) -> None:
        """`links` dial no node from the moment when another process is found to have the name."""
        self._metastore = metastore
        self._identity = identity
        self._template = template
        self._one_at_a_time = asyncio.Lock()
        self.session_id = 0
        """This process's session; 0 while it is not registered."""
        self.why = "it has not registered yet"
        """Why it is not registered; "" while it is."""
        self.taken = False
        """Whether another process has the name, as of the last attempt to register."""
        self._own: deque[int] = deque(maxlen=OWN_SESSIONS_MAX)
        self._withheld: dict[int, int] = {}
        """Partition -> 0, of copies that this process holds but does not use any more."""
        self._lost = {"removed": 0, "taken": 0}
        self._look = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._links = links
        self._listeners: list[SessionListener] = []

    def watch(self, listener: SessionListener) -> None:
        """Notify `listener` of each new session, and when another process took the name while the session lived."""
        self._listeners.append(listener)

    @property
    def registered(self) -> bool:
        """Whether this process is registered under its node's name."""
        return self.session_id != 0

    # -- keep registered ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Keep the node registered from now on, until `stop`."""
        self._task = asyncio.get_running_loop().create_task(self._keep())

    async def stop(self) -> None:
        """Keep the node registered no longer; the registration stays until its session ends."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def expired(self) -> None:
        """The session is over: register in the next one."""
        self.session_id, self.why = 0, "its session with the metastore is over"
        self._look.set()

    def seen(self, registrations: Mapping[str, Registration]) -> None:
        """Compare registrations that were read with this process's own. Where that differs, register again: the read
        may be older."""
        here = registrations.get(self._template.node)
        if here is None or here.session_id != self.session_id:
            self._look.set()

    async def _keep(self) -> None:
        while True:
            await self._look.wait()
            self._look.clear()
            try:
                await self.register()
            except NameTaken:  # already reported; `seen` or the pause ends the wait
                self._look.set()
                await asyncio.sleep(RETRY_MS / 1000)
            except (Unavailable, Ambiguous, VersionConflict, IsthmusError) as error:
                if not self.session_id:
                    self.why = str(error) or self.why
                log.warning("metastore.register_failed", error=str(error))
                self._look.set()
                await asyncio.sleep(RETRY_MS / 1000)
            except Exception as error:  # an unregistered node that serves on would be worse than another attempt
                unforeseen.exception("metastore.register_bug", error)
                self._look.set()
                await asyncio.sleep(RETRY_MS / 1000)

    def samples(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Samples: whether this process is registered, and how often it lost its registration."""
        yield "isthmus_registered", {}, 1 if self.session_id else 0
        for cause, count in self._lost.items():
            yield "isthmus_registrations_lost_total", {"cause": cause}, count

    def _lose(self, cause: str, reason: str) -> None:
        self._lost[cause] += 1
        log.error("metastore.registration_lost", cause=cause, inc=self.session_id, reason=reason)

    # -- registering --------------------------------------------------------------------------------------

    def withhold(self, partition: int) -> None:
        """Register this copy as absent, with the next `register` and until this process ends."""
        self._withheld[partition] = 0

    async def register(self) -> int:
        """Register, or renew the registration; returns the session id. Raises Unavailable, Ambiguous, VersionConflict,
        NameTaken, and WrongIdentity when another node has this one's id."""
        async with self._one_at_a_time:
            log_ids = self._identity.log_ids() | self._withheld
            registration = replace(self._template, log_ids=log_ids, spare_log_id=self._identity.spare)
            before = self.session_id
            try:
                session_id = await self._metastore.register(registration, tuple(self._own) if self._own else None)
            except NameTaken as error:
                if before and self.session_id == before:
                    self._lose("taken", str(error))
                    self.session_id = 0
                    for listener in self._listeners:
                        listener.session_expired()
                self.why = str(error)
                if not self.taken:
                    self.taken = True
                    self._links.set_nodes({})
                raise
            self.taken = False
            if session_id == self.session_id:
                return session_id
            if before and self.session_id == before:
                why = "another node's dial was refused, or it was removed by hand"
                self._lose("removed", f"the znode was gone though the session lives: {why}")
            log.info("metastore.registered", inc=session_id)
            self._own.append(session_id)
            self.session_id, self.why = session_id, ""
            for listener in self._listeners:
                listener.session_started(session_id)
            return session_id

    async def withdraw(self, timeout_s: float) -> None:
        """Register as stopping: this node is no longer elected or added to an ISR. Where the metastore does not answer
        within WITHDRAW_S or `timeout_s`, the end of the session has the same effect."""
        self._template = replace(self._template, active=False)
        try:
            async with asyncio.timeout(min(WITHDRAW_S, timeout_s)):
                await self.register()
        except (Unavailable, Ambiguous, VersionConflict, IsthmusError, TimeoutError) as error:
            log.warning("metastore.not_withdrawn", error=str(error))


async def verify_local_replicas(
    metastore: Metastore,
    identity: NodeIdentity,
    recovered: Mapping[int, RecoveredPartition],
    store: Store,
    *,
    node: str,
    cluster_uuid: bytes,
    boot_id: str,
    durability: str,
) -> Mapping[int, PartitionRecord]:
    """Give new gens to untrusted copies, and gens to assigned ones, durably; returns the cluster's records by
    partition. Raises LocalFault, and the metastore's errors.

    The spare gen stays for the life of the directory: a copy that was never noted here never held data, so no doubt
    about other copies concerns it."""
    records = await metastore.records()
    doubted = _doubted(identity, recovered, store, _wholly_doubted(identity, boot_id, durability))
    spare = 0 if identity.spare else await metastore.allocate_log_id()
    log_ids: dict[int, int] = {}
    if doubted:
        log_id = await metastore.allocate_log_id()
        log_ids = dict.fromkeys(doubted, log_id)
        for partition, reason in doubted.items():
            log.warning("identity.new_gen", partition=partition, gen=log_id, reason=reason)
    known, again, deleting = {*identity.partitions()}, identity.log_ids(), {*identity.condemned()}
    for partition, record in records.items():
        if node in record.replicas and partition not in known and partition not in deleting:
            log_ids[partition] = again.get(partition) or spare or identity.spare
    identity.adopt(cluster_uuid, node, boot_id, log_ids, spare)
    return records


def _wholly_doubted(identity: NodeIdentity, boot_id: str, durability: str) -> str:
    """Why no copy of this directory can be trusted; "" when they can."""
    if identity.doubt:
        return identity.doubt
    if durability == "async" and identity.boot_id not in ("", boot_id) and not identity.clean:
        return "the machine stopped while durability was async"
    return ""


def _doubted(
    identity: NodeIdentity, recovered: Mapping[int, RecoveredPartition], store: Store, wholly: str
) -> dict[int, str]:
    """Partition -> why its copy here must not count as the one that the record names. A copy in a state transfer is
    not electable anyway."""
    doubted: dict[int, str] = {}
    for partition in identity.partitions():
        if wholly:
            doubted[partition] = wholly
        elif partition in recovered and recovered[partition].damage:
            doubted[partition] = recovered[partition].damage
        elif partition in recovered and partition not in store.transfers.marks():
            start, applied = recovered[partition].start, store.applied(partition).offset
            believed = min(applied, store.durable_floor(partition)) if store.needs_replay() else applied
            if believed < start:
                doubted[partition] = f"the store ends at {believed} and the log begins at {start}"
    return doubted
