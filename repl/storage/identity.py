"""Identity of a data directory: its cluster, its node, one lock, and each partition's gen and highest epoch.

A directory serves exactly one (cluster uuid, node); any other is refused before files are changed (docs/protocol.md
H33). `log_id` identifies one honest log: it changes when a log lost data (R-GEN). `spare` is the gen of every copy that
does not exist yet: an empty log is an honest one. `epoch_seen` is durable before a replica acts in that epoch. All of
it is in two slot files (`repl.storage.slot_file`); every value that can be read here is durable.
`repl.runtime.registration` decides when copies get new gens.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from isthmus.config.text import quantity
from isthmus.repl.machine import machine
from isthmus.repl.model.errors import Corruption, LocalFault, WrongIdentity
from isthmus.repl.model.record import Incarnation
from isthmus.repl.storage.slot_file import SlotFile, sync_directory

IDENTITY_VERSION: Final = 1

ADOPT: Final = "isthmus cluster adopt"
"""The command that a refusal of an empty metastore names, by which `isthmus local up` knows the refusal."""

NAME: Final = "identity"
"""Name of the two slot files."""

GONE: Final = ("condemned", "left")
"""Keys of copies that are being deleted, and that were: partition -> [gen of the next copy, epoch seen]."""


@dataclass(frozen=True, slots=True)
class PartitionIdentity:
    """One replica: its gen, the highest epoch that it may have acted in, and the leader or candidate of that epoch
    (None: unknown)."""

    log_id: int
    epoch_seen: int
    epoch_owner: Incarnation | None = None


class NodeIdentity:
    """The identity of one open, locked data directory; `close` releases the lock. Thread-safe; methods that write block
    for an fsync, one at a time."""

    def __init__(self, directory: Path, lock_fd: int, slots: SlotFile, value: dict[str, Any] | None) -> None:
        self.directory = directory
        self._lock_fd = lock_fd
        self._slots = slots
        self._value: dict[str, Any] = value or {
            "version": IDENTITY_VERSION,
            "cluster_uuid": b"",
            "node": "",
            "boot_id": "",
            "clean": True,
            "spare": 0,
            "doubt": "",
            "partitions": {},
            "condemned": {},
            "left": {},
            "owners": {},
        }
        self._writing = machine().lock()
        self.is_new = value is None

    @staticmethod
    def open(directory: Path) -> NodeIdentity:
        """Lock and read `directory`, which is created when absent. Raises LocalFault when it cannot be written or
        another process has it, Corruption when its identity is damaged."""
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock_fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise LocalFault(
                f"data directory {directory} cannot be written ({error.strerror}): "
                "set node.data_dir to a directory that this user owns"
            ) from error
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock_fd)
            raise LocalFault(
                f"data directory {directory} is in use by another process: "
                "stop it, or give this node its own node.data_dir"
            ) from error
        try:
            sync_directory(directory)
            slots = SlotFile(directory, NAME)
            value = slots.read()
            if value is not None and (not isinstance(value, dict) or value.get("version") != IDENTITY_VERSION):
                raise Corruption(
                    f"{directory}/identity is not of version {IDENTITY_VERSION}: is it of a newer Isthmus?"
                )
            if value is None and any((directory / sub).exists() for sub in ("log", "store")):
                raise WrongIdentity(
                    f"data directory {directory} holds data but no identity: restore its identity files, "
                    "or move the directory away and start empty"
                )
        except BaseException:
            os.close(lock_fd)
            raise
        return NodeIdentity(directory, lock_fd, slots, value)

    def check_node(self, node: str) -> None:
        """Refuse a directory of another node. Raises WrongIdentity."""
        if not self.is_new and self._value["node"] != node:
            raise WrongIdentity(
                f"data directory {self.directory} belongs to node {self._value['node']!r}, not {node!r}: "
                "set node.data_dir to another directory, or node.name back"
            )

    def check_cluster(self, cluster_uuid: bytes, cluster: str) -> None:
        """Refuse a directory of another cluster, or a recreated metastore. Raises WrongIdentity."""
        mine = self._value["cluster_uuid"]
        if not self.is_new and mine != cluster_uuid:
            raise self._other_metastore(cluster, f"is of cluster {cluster_uuid.hex()}")

    def check_metastore(self, cluster: str, *, empty: bool) -> None:
        """Refuse an empty metastore for a directory that belongs to a cluster: it lost its data, or is another one.
        Raises WrongIdentity."""
        if empty and not self.is_new:
            raise self._other_metastore(cluster, "is empty")

    def _other_metastore(self, cluster: str, what: str) -> WrongIdentity:
        copies = len(self._value["partitions"])
        advice = (
            f"do not empty the directory, it holds {quantity(copies, 'copy')}; if ZooKeeper lost its data, "
            f'`{ADOPT} FILE` fills it again (docs/runbooks.md, "ZooKeeper\'s data is gone")'
            if copies
            else "the directory holds no copies: an empty one can be set instead"
        )
        return WrongIdentity(
            f"data directory {self.directory} belongs to cluster {self.cluster_uuid.hex()}, but the metastore of "
            f"{cluster!r} {what}: point metastore.hosts at the right one; {advice}"
        )

    @property
    def cluster_uuid(self) -> bytes:
        """16 bytes; empty while new."""
        value: bytes = self._value["cluster_uuid"]
        return value

    @property
    def clean(self) -> bool:
        """True when the last process stopped cleanly."""
        return bool(self._value["clean"])

    @property
    def boot_id(self) -> str:
        """The machine's boot id when this directory was last open."""
        return str(self._value["boot_id"])

    @property
    def spare(self) -> int:
        """The gen of copies that do not exist yet; 0 before one was allocated."""
        return int(self._value.get("spare", 0))

    def log_ids(self) -> dict[int, int]:
        """Partition -> gen, of every copy in this directory, and of deleted copies that may be opened again; all other
        new copies get the spare one."""
        gone = {**self._value.get("left", {}), **self._value.get("condemned", {})}
        again = {partition: found[0] for partition, found in gone.items() if found[0]}
        return again | {partition: found[0] for partition, found in self._value["partitions"].items()}

    @property
    def doubt(self) -> str:
        """Why no copy in this directory can be trusted; "" when they can."""
        return str(self._value.get("doubt", ""))

    def condemned(self) -> list[int]:
        """The partitions whose copies here are being deleted."""
        return sorted(self._value.get("condemned", {}))

    def partition(self, partition: int) -> PartitionIdentity | None:
        """The replica's identity, None when it was never here."""
        found = self._value["partitions"].get(partition)
        if found is None:
            return None
        epoch, node, session_id = self._value.get("owners", {}).get(partition, (-1, "", 0))
        return PartitionIdentity(found[0], found[1], Incarnation(node, session_id) if epoch == found[1] else None)

    def partitions(self) -> list[int]:
        """The partitions that this directory holds a replica of."""
        return sorted(self._value["partitions"])

    def emptied(self, log: Path, store: Path) -> str:
        """Which of an earlier run's `log` and `store` directories are gone, in one sentence; "" when none is. To be
        called before they are opened, which creates them: an empty log shows no damage, so only the identity shows that
        it held data (R-GEN)."""
        if self.is_new or not self._value["partitions"]:
            return ""
        gone = [str(path) for path in (log, store) if not path.is_dir() or not any(path.iterdir())]
        return f"{' and '.join(gone)} of an earlier run is gone" if gone else ""

    def note_doubt(self, doubt: str) -> None:
        """Record that no copy here can be trusted, before anything hides the reason; durable on return, until the next
        `adopt`. Raises LocalFault."""
        with self._writing:
            self._write(self._value | {"doubt": doubt})

    def renew(self, doubt: str) -> None:
        """Trust nothing of this directory at the next start: every copy takes a new gen, and so do copies that do not
        exist yet, since a restored directory may not know copies that were made later (docs/protocol.md H39). Durable
        on return. Raises LocalFault."""
        with self._writing:
            forgotten = {name: {p: [0, found[1]] for p, found in self._value.get(name, {}).items()} for name in GONE}
            self._write(self._value | forgotten | {"doubt": doubt, "spare": 0})

    def adopt(self, cluster_uuid: bytes, node: str, boot_id: str, log_ids: Mapping[int, int], spare: int = 0) -> None:
        """Record the running node, the (new) gens, and the spare gen unless it is 0; durable on return, not clean from
        now on, and trusted again. Raises LocalFault."""
        with self._writing:
            value = self._with_log_ids(log_ids)
            value |= {"cluster_uuid": cluster_uuid, "node": node, "boot_id": boot_id, "clean": False, "doubt": ""}
            if spare:
                value["spare"] = spare
            self._write(value)
            self.is_new = False

    def note_log_ids(self, log_ids: Mapping[int, int]) -> None:
        """Record these copies' gens; durable on return. Raises LocalFault."""
        with self._writing:
            self._write(self._with_log_ids(log_ids))

    def note_epochs(self, epochs: Mapping[int, tuple[int, Incarnation | None]]) -> None:
        """Raise the highest epochs seen of existing copies, with their leaders; durable on return. Raises LocalFault.
        An owner is stored with its epoch: a release that knows no owners may raise the epoch alone."""
        with self._writing:
            partitions, owners = dict(self._value["partitions"]), dict(self._value.get("owners", {}))
            for partition, (epoch, owner) in epochs.items():
                if partition not in partitions:
                    continue  # condemned meanwhile
                log_id, seen = partitions[partition]
                partitions[partition] = [log_id, max(seen, epoch)]
                if owner is not None and epoch >= seen:
                    owners[partition] = [epoch, *owner]
            self._write(self._value | {"partitions": partitions, "owners": owners})

    def condemn(self, partition: int, log_id: int) -> None:
        """Record that the copy of `partition` no longer counts and will be deleted, and that a later copy gets
        `log_id`, so that it is never taken for the deleted one. Durable on return. Raises LocalFault."""
        with self._writing:
            partitions = dict(self._value["partitions"])
            epoch = partitions.pop(partition)[1]
            condemned = {**self._value.get("condemned", {}), partition: [log_id, epoch]}
            self._write(self._value | {"partitions": partitions, "condemned": condemned})

    def deleted(self, partition: int) -> None:
        """Record that the copy is deleted; the highest epoch that it saw is kept for a later copy (docs/protocol.md
        H32). Durable on return. Raises LocalFault."""
        with self._writing:
            condemned = dict(self._value["condemned"])
            left = {**self._value.get("left", {}), partition: condemned.pop(partition)}
            self._write(self._value | {"condemned": condemned, "left": left})

    def _with_log_ids(self, log_ids: Mapping[int, int]) -> dict[str, Any]:
        partitions, left = dict(self._value["partitions"]), dict(self._value.get("left", {}))
        for partition, log_id in log_ids.items():
            found = partitions.get(partition) or left.pop(partition, None)
            partitions[partition] = [log_id, found[1] if found else 0]
        return self._value | {"partitions": partitions, "left": left}

    def _write(self, value: dict[str, Any]) -> None:
        """Write `value`, and use it once it is durable."""
        self._slots.write(value)
        self._value = value

    def close(self, clean: bool) -> None:
        """Record a clean stop if it was one, and release the lock."""
        try:
            if clean and not self.is_new:
                with self._writing:
                    self._write(self._value | {"clean": True})
        finally:
            self._slots.close()
            os.close(self._lock_fd)
