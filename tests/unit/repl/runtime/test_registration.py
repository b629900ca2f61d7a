"""A data directory's identity, the replicas that are trusted after a start (docs/protocol.md R-GEN, H33), and the
registration of a process."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from isthmus.repl.metastore.port import NameTaken
from isthmus.repl.model.errors import Corruption, LocalFault, WrongIdentity
from isthmus.repl.model.record import Incarnation, Member, PartitionRecord, Registration
from isthmus.repl.replog.port import RecoveredPartition
from isthmus.repl.runtime.registration import Registrar, verify_local_replicas
from isthmus.repl.storage.identity import NodeIdentity, PartitionIdentity
from isthmus.repl.storage.slot_file import SlotFile
from tests.support.memory_metastore import MemoryEnsemble, MemoryMetastore
from tests.support.memory_store import MemoryStore

UUID = b"east-cluster-016"
SOUND = {0: RecoveredPartition(0, 5, ((1, 0),)), 1: RecoveredPartition(0, 5, ((1, 0),))}


async def settled(
    directory: Path,
    ensemble: MemoryEnsemble,
    *,
    recovered: dict[int, RecoveredPartition] | None = None,
    boot_id: str = "boot-1",
    durability: str = "fsync",
    clean: bool = True,
    doubt: str = "",
) -> tuple[dict[int, int], int]:
    """One start of n1: the log ids of its replicas afterwards, and the spare one."""

    metastore = MemoryMetastore(ensemble)
    await metastore.start(lambda _state: None)
    identity = NodeIdentity.open(directory)
    try:
        if doubt:
            identity.note_doubt(doubt)
        await verify_local_replicas(
            metastore,
            identity,
            SOUND if recovered is None else recovered,
            MemoryStore(),
            node="n1",
            cluster_uuid=UUID,
            boot_id=boot_id,
            durability=durability,
        )
        assert not identity.doubt
        return identity.log_ids(), identity.spare
    finally:
        identity.close(clean)
        await metastore.stop()


async def founded(directory: Path, ensemble: MemoryEnsemble, *, durability: str = "fsync") -> dict[int, int]:
    """A directory with two replicas, left by a kill: their log ids."""

    async def found() -> None:
        metastore = MemoryMetastore(ensemble)
        await metastore.start(lambda _state: None)
        _, spare = settled_here
        await metastore.create_records(
            [PartitionRecord(p, "default", p, 2, ("n1",), isr=frozenset({Member("n1", spare)})) for p in (0, 1)]
        )
        await metastore.stop()

    settled_here = await settled(directory, ensemble, recovered={}, durability=durability, clean=False)
    assert settled_here[0] == {}
    await found()
    log_ids, spare = await settled(directory, ensemble, recovered={}, durability=durability, clean=False)
    assert log_ids == {0: spare, 1: spare}
    return log_ids


async def test_a_new_replica_takes_the_spare_log_id(tmp_path: Path) -> None:
    """A new replica gets the spare log id of its directory, at this and any later start."""
    ensemble = MemoryEnsemble()
    log_ids = await founded(tmp_path, ensemble)
    assert await settled(tmp_path, ensemble) == (log_ids, log_ids[0])


async def test_an_undamaged_replica_keeps_its_log_id(tmp_path: Path) -> None:
    """A clean stop, a kill and, in fsync mode, a power loss all keep the log id."""
    ensemble = MemoryEnsemble()
    first = await founded(tmp_path, ensemble)
    assert (await settled(tmp_path, ensemble))[0] == first
    assert (await settled(tmp_path, ensemble, boot_id="boot-2", clean=False))[0] == first
    assert (await settled(tmp_path, ensemble, boot_id="boot-3"))[0] == first


@pytest.mark.parametrize("case", ["damage", "doubt", "async power loss", "new directory"])
async def test_a_replica_that_may_have_lost_entries_takes_a_new_log_id(tmp_path: Path, case: str) -> None:
    """R-GEN: a replica that is damaged, emptied, suspect after a power loss, or new is not the one in the record."""
    ensemble = MemoryEnsemble()
    directory = tmp_path / "data"
    first = await founded(directory, ensemble, durability="async" if case == "async power loss" else "fsync")
    match case:
        case "damage":
            hurt = {0: RecoveredPartition(0, 2, ((1, 0),), "entries from 2 on may be lost"), 1: SOUND[1]}
            log_ids, _ = await settled(directory, ensemble, recovered=hurt)
            assert log_ids[1] == first[1]
        case "doubt":
            log_ids, _ = await settled(directory, ensemble, recovered={}, doubt="log of an earlier run is gone")
        case "async power loss":
            log_ids, _ = await settled(directory, ensemble, durability="async", boot_id="boot-2")
        case "new directory":
            shutil.rmtree(directory)
            log_ids, _ = await settled(directory, ensemble, recovered={})
    assert log_ids[0] != first[0]
    assert (await settled(directory, ensemble))[0] == log_ids, "settled once"


async def test_suspected_loss_outlives_an_interrupted_start(tmp_path: Path) -> None:
    """Opening recreates an emptied log, so only the recorded suspicion informs the next start."""
    ensemble = MemoryEnsemble()
    first = await founded(tmp_path, ensemble)
    identity = NodeIdentity.open(tmp_path)
    identity.note_doubt("the log is gone")
    identity.close(clean=False)
    assert (await settled(tmp_path, ensemble))[0][0] != first[0]


async def test_an_async_replica_keeps_its_log_id_when_nothing_was_lost(tmp_path: Path) -> None:
    """In async mode a plain kill keeps the page cache, and a clean stop before a reboot loses nothing."""
    ensemble = MemoryEnsemble()
    first = await founded(tmp_path, ensemble, durability="async")
    assert (await settled(tmp_path, ensemble, durability="async"))[0] == first
    assert (await settled(tmp_path, ensemble, durability="async", boot_id="boot-2"))[0] == first


def test_data_missing_since_an_earlier_run_is_detected(tmp_path: Path) -> None:
    """An identity that has held partitions detects a missing or empty log or store; a new one does not."""
    log, store = tmp_path / "log", tmp_path / "store"
    identity = NodeIdentity.open(tmp_path)
    assert identity.emptied(log, store) == ""
    identity.adopt(UUID, "n1", "boot", {0: 1})
    identity.close(clean=True)
    for path in (log, store):
        path.mkdir()
        (path / "file").write_text("x")
    identity = NodeIdentity.open(tmp_path)
    assert identity.emptied(log, store) == ""
    (log / "file").unlink()
    assert identity.emptied(log, store) == f"{log} of an earlier run is gone"
    shutil.rmtree(store)
    assert identity.emptied(log, store) == f"{log} and {store} of an earlier run is gone"
    identity.close(clean=True)


def test_a_directory_serves_one_node_of_one_cluster(tmp_path: Path) -> None:
    """H33: another node's name, another cluster's uuid, and a recreated metastore are refused in one line."""
    identity = NodeIdentity.open(tmp_path)
    identity.adopt(UUID, "n1", "boot", {0: 1})
    with pytest.raises(LocalFault, match="in use by another process"):
        NodeIdentity.open(tmp_path)
    identity.close(clean=True)
    identity = NodeIdentity.open(tmp_path)
    identity.check_node("n1")
    identity.check_cluster(UUID, "east")
    with pytest.raises(WrongIdentity, match="belongs to node 'n1'"):
        identity.check_node("n2")
    with pytest.raises(WrongIdentity, match=r"point metastore.hosts at the right one; do not empty"):
        identity.check_cluster(b"west-cluster-016", "west")
    identity.close(clean=True)


def test_data_without_an_identity_is_refused(tmp_path: Path) -> None:
    """A directory that has data but lost its identity is not taken for a new one."""
    (tmp_path / "log").mkdir()
    with pytest.raises(WrongIdentity, match="no identity"):
        NodeIdentity.open(tmp_path)


def test_epochs_seen_outlive_the_process_and_a_torn_slot(tmp_path: Path) -> None:
    """Recorded epochs are there after a reopening, also if a power loss tore the newest slot."""
    identity = NodeIdentity.open(tmp_path)
    identity.adopt(UUID, "n1", "boot", {0: 1})
    identity.note_epochs({0: (4, None)})
    identity.note_epochs({0: (5, None)})
    identity.close(clean=False)
    newest = max((tmp_path / "identity.0", tmp_path / "identity.1"), key=lambda p: p.read_bytes()[4:12])
    whole = newest.read_bytes()
    for cut in (0, 10, len(whole) - 1):
        newest.write_bytes(whole[:cut])
        identity = NodeIdentity.open(tmp_path)
        found = identity.partition(0)
        assert found is not None
        assert found.epoch_seen == 4
        assert not identity.clean
        identity.close(clean=False)
    newest.write_bytes(whole)
    identity = NodeIdentity.open(tmp_path)
    found = identity.partition(0)
    assert found is not None
    assert found.epoch_seen == 5
    identity.close(clean=False)


def test_both_slots_damaged_is_corruption(tmp_path: Path) -> None:
    """Without a valid slot nothing is guessed."""
    slots = SlotFile(tmp_path, "value")
    slots.write({"a": 1})
    slots.write({"a": 2})
    assert SlotFile(tmp_path, "value").read() == {"a": 2}
    for name in ("value.0", "value.1"):
        data = bytearray((tmp_path / name).read_bytes())
        data[-1] ^= 1
        (tmp_path / name).write_bytes(bytes(data))
    with pytest.raises(Corruption, match="both damaged"):
        SlotFile(tmp_path, "value").read()


def test_the_leader_of_the_highest_epoch_is_stored_with_it(tmp_path: Path) -> None:
    """H32: a leader counts for its own epoch alone, so an epoch stored without one has none; a directory of an older
    version names no leaders at all."""
    identity = NodeIdentity.open(tmp_path)
    identity.adopt(UUID, "n1", "boot", {0: 1, 1: 2})
    identity.note_epochs({0: (5, Incarnation("n2", 50)), 1: (3, None)})
    identity.note_epochs({0: (4, Incarnation("n3", 60))})
    identity.close(clean=True)
    identity = NodeIdentity.open(tmp_path)
    assert identity.partition(0) == PartitionIdentity(1, 5, Incarnation("n2", 50))
    assert identity.partition(1) == PartitionIdentity(2, 3, None)
    identity.note_epochs({0: (6, None)})
    assert identity.partition(0) == PartitionIdentity(1, 6, None)
    del identity._value["owners"]
    assert identity.partition(0) == PartitionIdentity(1, 6, None)
    identity.note_epochs({0: (6, Incarnation("n1", 70))})
    assert identity.partition(0) == PartitionIdentity(1, 6, Incarnation("n1", 70))
    identity.close(clean=True)


class Process:
    """A process of n1 with its session, and the nodes that it was told to dial."""

    def __init__(self, ensemble: MemoryEnsemble) -> None:
        self.dialled: list[Mapping[str, str]] = []
        self.metastore = MemoryMetastore(ensemble)
        identity = SimpleNamespace(log_ids=dict, spare=1)
        links = SimpleNamespace(set_nodes=self.dialled.append)
        self.registrar = Registrar(self.metastore, identity, Registration("n1", 0, True), links)  # type: ignore[arg-type]


async def test_a_process_whose_name_is_taken_dials_no_node() -> None:
    """H28: the other nodes know it by its name, and would drop the connection of the process that has the name. So its
    connections end at once, when it learns that, and not only with the next reading."""
    ensemble = MemoryEnsemble()
    first, second = Process(ensemble), Process(ensemble)
    for process in (first, second):
        await process.metastore.start(lambda _state: None)
        await process.registrar.register()
    assert first.dialled == []
    with pytest.raises(NameTaken):
        await first.registrar.register()
    assert first.registrar.taken
    assert first.dialled == [{}]
    assert second.dialled == []
    for process in (first, second):
        await process.metastore.stop()
