"""The log against a model: any sequence of calls, restarts, kills and power losses, and what is there afterwards."""

from __future__ import annotations

from random import Random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support.log_history import History, Listener, PartitionState, entries, kill, open_log
from tests.support.memory_disk import MemoryDisk
from tests.support.samples import share

PARTITIONS = st.integers(0, 2)
LIMIT_BYTES = 1500


class LogModel(RuleBasedStateMachine):
    """One log directory, one process after the other; `history` holds every state that it went through."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = MemoryDisk()
        self.history = History()
        self.epochs = {0: 1, 1: 1, 2: 1}
        self.tag = 0
        self.listener: Listener | None = None

    @initialize(durability=st.sampled_from(["fsync", "async"]))
    def begin(self, durability: str) -> None:
        """In async mode the process is killed without a power loss, since a power loss costs the log id anyway."""
        self.durability = durability
        self.open()

    def open(self) -> None:
        known = {p: len(state.wires) for p, state in self.history.states[self.history.durable_at].items()}
        self.log = open_log(
            self.disk, durability=self.durability, size_limit_bytes=LIMIT_BYTES, known_durable=self.lowest(known)
        )
        self.history.continued_from(self.history.recovered_as(self.log))
        self.listener = Listener(self.log)
        self.heard = 0

    def lowest(self, known: dict[int, int]) -> dict[int, int]:
        """The offsets that a store may have applied: at most those that any later state still has."""
        after = self.history.states[self.history.durable_at :]
        return {p: min(len(state.get(p, PartitionState()).wires) for state in after) for p in known}

    def wait_for_reports(self) -> None:
        assert self.listener is not None
        reports = self.listener.reports
        while self.heard < len(reports):
            self.history.reported(reports[self.heard])
            self.heard += 1

    @rule(partition=PARTITIONS, count=st.integers(1, 5), size=st.sampled_from([20, 60, 300]), newer=st.booleans())
    def append(self, partition: int, count: int, size: int, newer: bool) -> None:
        """Append, perhaps as the first of a new epoch."""
        self.epochs[partition] += newer
        self.tag += 1
        added = entries(self.epochs[partition], self.log.leo(partition), count, size=size, tag=self.tag)
        self.history.append(partition, added)
        self.log.append(partition, added)

    @rule(partition=PARTITIONS, share=st.floats(0, 1))
    def truncate(self, partition: int, share: float) -> None:
        """Truncate somewhere above the floor; the next entries are of a newer epoch."""
        leo, floor = self.history.leo(partition), self.history.floors.get(partition, 0)
        if partition not in self.history.now:
            return
        to_offset = floor + round((leo - floor) * share)
        self.epochs[partition] += 1
        self.history.truncate(partition, to_offset)
        self.log.truncate(partition, to_offset, self.epochs[partition])

    @rule()
    def wait(self) -> None:
        """Wait until all is durable."""
        assert self.listener is not None
        wanted = {p: len(state.wires) for p, state in self.history.now.items()}
        if self.listener.durable:
            assert self.listener.wait({p: end for p, end in wanted.items() if p in self.listener.durable})

    @rule(partition=PARTITIONS, share=st.floats(0, 1))
    def trim(self, partition: int, share: float) -> None:
        """The store's floor of a partition rises, to at most what is durable; then the log may be trimmed."""
        self.wait_for_reports()
        held = [state.get(partition, PartitionState()) for state in self.history.states[self.history.durable_at :]]
        floor = round(min(len(state.wires) for state in held) * share)
        self.history.floors[partition] = max(floor, self.history.floors.get(partition, 0))
        self.log.trim(dict(self.history.floors))

    @rule()
    def restart(self) -> None:
        """A clean stop keeps everything."""
        self.log.close()
        self.wait_for_reports()
        self.history.durable_at = len(self.history.states) - 1
        self.open()

    @rule(how=st.sampled_from(["kept", "lost", "torn"]), steps=st.integers(0, 6), seed=st.integers(0, 1000))
    def crash(self, how: str, steps: int, seed: int) -> None:
        """The process ends at one of its next steps, or the power fails."""
        assert self.listener is not None
        self.disk.tear_write = seed % 2 == 0
        self.disk.stop_at = len(self.disk.steps) + 1 + steps
        if steps:  # go on until the disk stops or all is done
            wanted = {p: len(s.wires) for p, s in self.history.now.items() if p in self.listener.durable}
            self.listener.wait(wanted)
        kill(self.log, self.disk)
        self.wait_for_reports()
        self.disk = self.disk.survivor("kept" if self.durability == "async" else how, Random(seed))
        self.open()

    @invariant()
    def what_is_read_is_what_was_appended(self) -> None:
        """Entries above the floors are those of the newest state, as far as they are durable."""
        if self.listener is None or not self.listener.durable:
            return
        for partition, state in self.history.now.items():
            floor = self.history.floors.get(partition, 0)
            read = [entry.wire for entry in self.log.read(partition, floor, len(state.wires), 1 << 20)]
            past = {s[partition].wires[floor : floor + len(read)] for s in self.history.states if partition in s}
            assert tuple(read) in past or not read

    def teardown(self) -> None:
        if self.listener is not None:
            self.log.close()


LogModel.TestCase.settings = settings(
    max_examples=share(40),
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


class TestLogModel(LogModel.TestCase):
    """After any operations, the log is in one of its earlier states, not older than the one it had reported."""
