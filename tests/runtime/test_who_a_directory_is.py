"""A data directory's identity, and which of its copies are believed after a start (docs/protocol.md R-GEN, H33)."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from repl.founding import settle
from repl.identity import Identity
from repl.metastore.memory import MemoryEnsemble, MemoryMetastore
from repl.model.errors import Corruption, LocalFault, WrongIdentity
from repl.model.record import Member, PartitionRecord
from repl.replog.port import RecoveredPartition
from repl.slots import Slots

UUID = b"east-cluster-016"
SOUND = {0: RecoveredPartition(0, 5, ((1, 0),)), 1: RecoveredPartition(0, 5, ((1, 0),))}


def settled(
    directory: Path,
    ensemble: MemoryEnsemble,
    *,
    recovered: dict[int, RecoveredPartition] | None = None,
    node: str = "n1",
    boot_id: str = "boot-1",
    durability: str = "fsync",
    clean: bool = True,
    emptied: str = "",
) -> tuple[dict[int, PartitionRecord], dict[int, int]]:
    """One start of a node: the records, and the gens of its two partitions afterwards."""

    async def start() -> tuple[dict[int, PartitionRecord], dict[int, int]]:
        metastore = MemoryMetastore(ensemble)
        await metastore.start(lambda _state: None)
        identity = Identity.open(directory)
        try:
            records = await settle(
                metastore,
                identity,
                SOUND if recovered is None else recovered,
                node=node,
                cluster="east",
                cluster_uuid=UUID,
                boot_id=boot_id,
                durability=durability,
                partition_count=2,
                emptied=emptied,
            )
            gens = {p: found.gen for p in (0, 1) if (found := identity.partition(p)) is not None}
        finally:
            identity.close(clean)
            await metastore.stop()
        return dict(records), gens

    return asyncio.run(start())


def test_a_new_cluster_gets_its_partitions_with_this_copy_in_sync(tmp_path: Path) -> None:
    """The first start creates all partitions, and their ISR is this node under the gen that its directory holds."""
    records, gens = settled(tmp_path, MemoryEnsemble(), recovered={})
    assert sorted(records) == [0, 1]
    assert all(r.isr == frozenset({Member("n1", gens[p])}) for p, r in records.items())


def test_a_sound_copy_keeps_its_gen(tmp_path: Path) -> None:
    """A clean stop, a kill and, in fsync mode, a power loss all keep the gen."""
    ensemble = MemoryEnsemble()
    _, first = settled(tmp_path, ensemble, recovered={}, clean=False)
    assert settled(tmp_path, ensemble)[1] == first
    assert settled(tmp_path, ensemble, boot_id="boot-2", clean=False)[1] == first
    assert settled(tmp_path, ensemble, boot_id="boot-3")[1] == first


@pytest.mark.parametrize("case", ["damage", "emptied", "async power loss", "new directory"])
def test_a_copy_that_may_have_lost_something_takes_a_new_gen(tmp_path: Path, case: str) -> None:
    """R-GEN: what is damaged, emptied, doubtful after a power loss or new is not the copy that the record means."""
    ensemble = MemoryEnsemble()
    directory = tmp_path / "data"
    records, first = settled(directory, ensemble, recovered={}, clean=False)
    match case:
        case "damage":
            hurt = {0: RecoveredPartition(0, 2, ((1, 0),), "entries from 2 on may be lost"), 1: SOUND[1]}
            _, gens = settled(directory, ensemble, recovered=hurt)
            assert gens[1] == first[1]
        case "emptied":
            _, gens = settled(directory, ensemble, recovered={}, emptied="log of an earlier run is gone")
        case "async power loss":
            _, gens = settled(directory, ensemble, durability="async", boot_id="boot-2")
        case "new directory":
            shutil.rmtree(directory)
            _, gens = settled(directory, ensemble, recovered={})
    assert gens[0] != first[0]
    assert Member("n1", gens[0]) not in records[0].isr


def test_an_async_copy_keeps_its_gen_when_nothing_was_lost(tmp_path: Path) -> None:
    """In async mode a mere kill keeps the page cache, and a clean stop before a reboot loses nothing."""
    ensemble = MemoryEnsemble()
    _, first = settled(tmp_path, ensemble, recovered={}, durability="async", clean=False)
    assert settled(tmp_path, ensemble, durability="async")[1] == first
    assert settled(tmp_path, ensemble, durability="async", boot_id="boot-2")[1] == first


def test_another_nodes_cluster_is_refused_by_name(tmp_path: Path) -> None:
    """A second node of a cluster is told who runs it and what to change."""
    ensemble = MemoryEnsemble()
    settled(tmp_path / "a", ensemble, recovered={})
    with pytest.raises(LocalFault, match="run by node n1"):
        settled(tmp_path / "b", ensemble, recovered={}, node="n2")


def test_what_is_gone_of_an_earlier_run_is_noticed(tmp_path: Path) -> None:
    """An identity that has held partitions misses a log or store that is absent or empty; a new one does not."""
    log, store = tmp_path / "log", tmp_path / "store"
    identity = Identity.open(tmp_path)
    assert identity.emptied(log, store) == ""
    identity.adopt(UUID, "n1", "boot", {0: 1})
    identity.close(clean=True)
    for path in (log, store):
        path.mkdir()
        (path / "file").write_text("x")
    identity = Identity.open(tmp_path)
    assert identity.emptied(log, store) == ""
    (log / "file").unlink()
    assert identity.emptied(log, store) == f"{log} of an earlier run is gone"
    shutil.rmtree(store)
    assert identity.emptied(log, store) == f"{log} and {store} of an earlier run is gone"
    identity.close(clean=True)


def test_a_directory_serves_one_node_of_one_cluster(tmp_path: Path) -> None:
    """H33: another node's name, another cluster's uuid, and a metastore made anew are refused in one line."""
    identity = Identity.open(tmp_path)
    identity.adopt(UUID, "n1", "boot", {0: 1})
    with pytest.raises(LocalFault, match="in use by another process"):
        Identity.open(tmp_path)
    identity.close(clean=True)
    identity = Identity.open(tmp_path)
    identity.check_node("n1")
    identity.check_cluster(UUID, "east")
    with pytest.raises(WrongIdentity, match="belongs to node 'n1'"):
        identity.check_node("n2")
    with pytest.raises(WrongIdentity, match="empty directory"):
        identity.check_cluster(b"west-cluster-016", "west")
    identity.close(clean=True)


def test_data_without_an_identity_is_refused(tmp_path: Path) -> None:
    """A directory that holds data but lost its identity is not taken for a new one."""
    (tmp_path / "log").mkdir()
    with pytest.raises(WrongIdentity, match="no identity"):
        Identity.open(tmp_path)


def test_epochs_seen_outlive_the_process_and_a_torn_slot(tmp_path: Path) -> None:
    """What was noted is there after a reopening, also when the newest slot was torn by a power loss."""
    identity = Identity.open(tmp_path)
    identity.adopt(UUID, "n1", "boot", {0: 1})
    identity.note_epochs({0: 4})
    identity.note_epochs({0: 5})
    identity.close(clean=False)
    newest = max((tmp_path / "identity.0", tmp_path / "identity.1"), key=lambda p: p.stat().st_mtime_ns)
    whole = newest.read_bytes()
    for cut in (0, 10, len(whole) - 1):
        newest.write_bytes(whole[:cut])
        identity = Identity.open(tmp_path)
        found = identity.partition(0)
        assert found is not None
        assert found.epoch_seen == 4
        assert not identity.clean
        identity.close(clean=False)
    newest.write_bytes(whole)
    identity = Identity.open(tmp_path)
    found = identity.partition(0)
    assert found is not None
    assert found.epoch_seen == 5
    identity.close(clean=False)


def test_both_slots_damaged_is_corruption(tmp_path: Path) -> None:
    """With no whole slot left nothing is guessed."""
    slots = Slots(tmp_path, "value")
    slots.write({"a": 1})
    slots.write({"a": 2})
    assert Slots(tmp_path, "value").read() == {"a": 2}
    for name in ("value.0", "value.1"):
        data = bytearray((tmp_path / name).read_bytes())
        data[-1] ^= 1
        (tmp_path / name).write_bytes(bytes(data))
    with pytest.raises(Corruption, match="both damaged"):
        Slots(tmp_path, "value").read()
