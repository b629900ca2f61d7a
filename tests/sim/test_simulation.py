"""The simulator's own seeds: no invariant breaks, everything happens that is meant to, and a seed replays exactly."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from repl.isr.replica import Replica, Role
from repl.model.record import PartitionStatus
from tests.sim.disk import Disk
from tests.sim.faults import Plan
from tests.sim.world import World, run_seed

SEEDS = range(200)

EXPECTED = {
    # what every range of seeds must have gone through, or the schedule has become a harmless one
    "acked": 20_000,
    "committed": 20_000,
    "reads": 20_000,
    "kill": 100,
    "power_loss": 100,
    "tail_lost": 20,
    "replay": 100,
    "pause": 100,
    "take_over": 50,
    "lock_refused": 100,
    "stale_handle": 50,
    "stop": 50,
    "stopped_clean": 50,
    "resigned": 30,
    "sync_failed": 20,
    "outage": 50,
    "cut": 50,
    "session_expired": 20,
    "expiry_noticed": 20,
    "registration_replaced": 100,
    "late_registration_refused": 10,
    "controller_slept": 200,
    "controller_refused": 1_000,
    "controller_undecided": 200,
    "write_confirmed": 30,
    "write_undecided": 10,
    "write_repeated": 10,
    "held": 1_000,
    "answer_lost": 50,
    "late_write_refused": 50,
    "old_record_ignored": 50,
    "status_election": 500,
    "status_candidate-found": 500,
    "status_online": 300,
    "status_offline": 100,
    "refused_not-leader": 1_000,
    "refused_not-ready": 100,
    "refused_fenced": 100,
    "refused_overloaded": 50,
    "refused_out-of-storage": 10,
    "unknown": 50,
    "trim": 300,
    "ambush_PersistEpoch": 5,
    "ambush_AppendBarrier": 5,
    "ambush_Persist": 5,
    "ambush_Apply": 5,
    "ambush_Promoted": 5,
    "ambush_LeadershipReady": 5,
}
"""What happened -> how often at least, over SEEDS; about a third of what a run shows."""


@pytest.mark.timeout(600)
def test_no_invariant_breaks_over_two_hundred_seeds_and_everything_happens() -> None:
    """Every named invariant holds after every event, every seed becomes well again, and the schedule is not tame."""
    total: Counter[str] = Counter()
    for seed in SEEDS:
        world = run_seed(seed)
        assert world.counts["acked"] > 0, f"seed {seed}: no client got anything through"
        assert world.counts["status_online"] > 0, f"seed {seed}: nobody was elected"
        total += world.counts
    missing = {name: (total[name], least) for name, least in EXPECTED.items() if total[name] < least}
    assert not missing, f"happened too rarely (seen, at least): {missing}"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_invariant_breaks_over_two_thousand_more_seeds() -> None:
    """The same over a longer range, for whoever has the minutes."""
    for seed in range(SEEDS.stop, SEEDS.stop + 2_000):
        run_seed(seed)


def test_a_seed_replays_exactly() -> None:
    """Same seed, same story and same end; another seed, another one."""
    first, again, other = run_seed(7), run_seed(7), run_seed(8)
    assert first.narrate() == again.narrate()
    assert (first.now_ms, first.counts) == (again.now_ms, again.counts)
    assert first.metastore.records == again.metastore.records
    assert first.narrate() != other.narrate()


def test_a_seed_replays_exactly_in_another_process() -> None:
    """No set's order and no hash of a text decides anything: another hash seed tells the same story."""
    root = Path(__file__).parents[2]
    told = {
        subprocess.run(
            [sys.executable, "-m", "tests.sim", "--seeds", "11:12", "--story"],
            cwd=root,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.rsplit("\n", 2)[0]
        for hash_seed in ("1", "2")
    }
    assert len(told) == 1
    assert "seed 11" in told.pop()


def test_a_violation_prints_the_seed_and_the_story() -> None:
    """A failure can be replayed from what it prints."""

    class Broken(Replica):
        def deadline_ms(self) -> int | None:
            assert self.role is not Role.LEADER, "led"
            return super().deadline_ms()

    with pytest.raises(AssertionError, match="led") as caught:
        run_seed(3, replica_class=Broken)
    (note,) = caught.value.__notes__
    assert "python -m tests.sim --seeds 3:4 --story" in note
    assert "RoleChanged(role=leader" in note


def test_a_world_without_faults_is_well_and_quiet_at_once() -> None:
    """One election, no unknown outcome, no refusal once ready, no second epoch."""
    world = run_seed(1, plan=Plan.only())
    record = world.metastore.records[0]
    assert (record.epoch, record.status) == (1, PartitionStatus.ONLINE)
    assert world.counts["unknown"] == 0
    assert world.counts["status_online"] == 1
    assert world.counts["acked"] > 300


def test_a_replaced_disk_is_never_elected() -> None:
    """R-GEN: the node comes back empty under a new gen: Offline, naming what it waits for, and nothing is acked."""
    world = World(5, plan=Plan.only())
    node = world.nodes["n1"]
    node.start()
    for controller in world.controllers:
        controller.start()
    for client in world.clients:
        client.start()
    world.run_until(3_000)
    acked = world.counts["acked"]
    assert acked > 0
    lost_gen = node.disk.gens[0]
    node.power_loss()
    node.disk = Disk([0])
    node.disk.gens[0] = world.metastore.new_gen()
    world.checkers.disks_replaced = True
    world.run_until(15_000)
    record = world.metastore.records[0]
    assert record.status is PartitionStatus.OFFLINE
    assert record.reason == f"waits for n1 (came back with another log: gen {node.disk.gens[0]}, not {lost_gen})"
    assert node.current is not None
    assert node.current.replicas[0].reason.startswith("offline: waits for n1")
    assert world.counts["acked"] == acked
    assert record.epoch == 1
