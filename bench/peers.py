"""Cost of our clusters, etcd and NATS under the same load, in turns: CPU seconds, objects a second, lag.

    python -m bench.peers [--short] [--json] [--only NAME ...] [--seconds 10] [--rounds 3] [--sharing 1]
                          [--clients leader|spread]

The systems are two clusters of Isthmus with three nodes or one node each and 12 or 48 partitions, where B fetches
from A, with leaders on as few nodes as carry the load or always on all; etcd with three nodes; and NATS with a stream
of three replicas and its mirror in a second cluster. Objects have 1 KB and fresh keys, and every server syncs before
it acknowledges (NATS before 2.10 cannot). Clients of Isthmus send to the leader of each key by the routes; with
`--clients spread`, and those of etcd and NATS always, to one node in turn. One system runs at a time. A round runs
every system once; every second round runs them in reverse order. With `--short` all systems are up, idle ones at
about a hundredth of a core, and take turns load by load, so that what else the machine does meets all of them; it
takes five minutes, `--only` less. The figures are those of the round with the median cost; ratios are the medians of
the rounds' ratios, with the least and the most. The cost is the CPU time of all servers until the second cluster has
all objects; ZooKeeper and the load generator are reported apart.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple

import click

from bench.figures import CpuTime, Figure, Target, cpu_time, machine, report
from bench.loadgen import LEADER, SPREAD, VALUE_BYTES, Phase, Result
from bench.nodes import BenchFailed, LoadProcess
from bench.peer_clusters import CLUSTER_A, CLUSTER_B, ETCD, NATS, Etcd, Isthmus, Nats, Program, Running, System
from bench.visibility import VisibilityProbe, percentile
from isthmus.repl.model.errors import IsthmusError

THREE: Final = "isthmus-3"
THREE_EVEN: Final = "isthmus-3-even"
THREE_MANY: Final = "isthmus-3-48"
ONE: Final = "isthmus-1"
ONE_MANY: Final = "isthmus-1-48"

PARTITIONS: Final = 12
MANY_PARTITIONS: Final = 48

BATCH_OBJECTS: Final = 100
BATCH_CONNECTIONS: Final = 8
LAG_RATE: Final = 1_000.0
LAG_CONNECTIONS: Final = 32

WARM_UP_S: Final = 2.0
"""Duration of the load before the first measurement, which opens connections between nodes and creates files."""

SETTLE_S: Final = 1.0
"""Idle time before a measurement, in which the servers finish the work of the previous one."""

KEYS_A_PHASE: Final = 10_000_000
"""Number of keys of a phase, more than any phase can write."""

GENERATOR: Final = "load generator"


class Work(NamedTuple):
    """One kind of load."""

    title: str
    kind: str
    connections: int


SINGLES: Final = tuple(Work(f"PUT, {count} clients", "put", count) for count in (32, 128, 512))
BATCHES: Final = Work(f"batches of {BATCH_OBJECTS}, {BATCH_CONNECTIONS} clients", "batch", BATCH_CONNECTIONS)
WORKS: Final = (*SINGLES, BATCHES)


def _times(unit: str, *values: float, at_least: bool = False) -> dict[Work, Target]:
    return {work: Target(value, f"times {unit}", at_least=at_least) for work, value in zip(WORKS, values, strict=False)}


SHORT_S: Final = 2.0
"""Duration of each load of a short run."""

SHORT_ROUNDS: Final = 3

AGAINST_ETCD: Final = _times("the CPU of etcd, cluster A", 0.75, 0.65, 0.7, 0.9)
AGAINST_NATS: Final = _times("the CPU of NATS, all nodes", 1.5, 1.0, 1.0)
AGAINST_EVEN: Final = _times("the CPU with leaders on all nodes", 0.45, 0.55, 0.75)
FASTER_THAN_EVEN: Final = _times("the rate with leaders on all nodes", 1.8, 1.4, 1.2, at_least=True)
LAG_OF_EVEN: Final = Target(1.05, "times the lag with leaders on all nodes", at_least=False)
MORE_PARTITIONS: Final = Target(1.1, f"times the CPU with {PARTITIONS} partitions", at_least=False)
LAG_P50: Final = Target(4, "ms, p50 of the lag", at_least=False)
LAG_P99: Final = Target(20, "ms, p99 of the lag", at_least=False)


class Entry(NamedTuple):
    """A system of the option --only."""

    make: Callable[[int], System]
    """Makes the system. The argument is the number of clients per connection; clients of Isthmus never share one."""
    needs: Program | None = None


ENTRIES: Final[Mapping[str, Entry]] = {
    THREE: Entry(lambda _: Isthmus(3, PARTITIONS)),
    THREE_EVEN: Entry(lambda _: Isthmus(3, PARTITIONS, even=True)),
    "etcd": Entry(Etcd, ETCD),
    "nats": Entry(Nats, NATS),
    THREE_MANY: Entry(lambda _: Isthmus(3, MANY_PARTITIONS)),
    ONE: Entry(lambda _: Isthmus(1, PARTITIONS)),
    ONE_MANY: Entry(lambda _: Isthmus(1, MANY_PARTITIONS)),
}


class Sample(NamedTuple):
    """The measurement of one phase in one round."""

    title: str
    """Title of the system."""
    result: Result
    seconds: float
    """Duration until the second cluster had all objects."""
    cpu: dict[str, CpuTime]
    load_average: float
    """Load average of one minute at the start."""
    leading: int = 0
    """Nodes of our cluster A that lead at the end; 0 for other systems."""

    @property
    def rate(self) -> float:
        """Objects a second that were accepted."""
        return self.result.objects / max(1e-9, self.result.seconds)

    @property
    def cost(self) -> float:
        """CPU seconds per 100,000 objects, both clusters."""
        return self.cost_of(CLUSTER_A) + self.cost_of(CLUSTER_B)

    def cost_of(self, cluster: str) -> float:
        """CPU seconds per 100,000 objects of one cluster; 0 for a cluster that the system does not have."""
        return self.cpu[cluster].total * 100_000 / self.result.objects if cluster in self.cpu else 0.0


class LagSample(NamedTuple):
    """Lags of one round, in ms."""

    title: str
    objects: int
    seconds: float
    seen_p50: float
    seen_p99: float
    from_request_p50: float
    from_request_p99: float
    sink_p50: float
    sink_p99: float
    failed: dict[str, int]
    load_average: float


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option(
    "--only", multiple=True, type=click.Choice(list(ENTRIES)), help="Run this system; can be repeated. Default: all."
)
@click.option(
    "--short", is_flag=True, help=f"Five minutes: {SHORT_ROUNDS} rounds of loads of {SHORT_S:g} s, with all systems up."
)
@click.option("--seconds", default=10.0, show_default=True, help="Duration of each load.")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1), help="Number of rounds.")
@click.option(
    "--sharing",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="Clients per connection of etcd and NATS.",
)
@click.option(
    "--clients",
    type=click.Choice([SPREAD, LEADER]),
    default=LEADER,
    show_default=True,
    help="Send to the nodes of A in turn, or to the leader of each key. Isthmus only.",
)
@click.option(
    "--dir", "directory", type=click.Path(path_type=Path), help="Where data lies; decides what an fsync costs."
)
def main(
    as_json: bool,
    only: tuple[str, ...],
    short: bool,
    seconds: float,
    rounds: int,
    sharing: int,
    clients: str,
    directory: Path | None,
) -> None:
    """Compare the cost of our clusters, etcd and NATS under the same load."""
    signal.signal(signal.SIGTERM, _terminated)
    try:
        where = machine()
        few = (THREE, THREE_EVEN, "etcd", "nats") if short else ENTRIES
        wanted = [name for name in ENTRIES if (name in only if only else name in few)]
        chosen, notes = installed(wanted)
        if not chosen:
            raise BenchFailed("; ".join(notes))
        comparison = Comparison(SHORT_S if short else seconds, sharing, clients, directory)
        if short:
            comparison.turns(chosen, SHORT_ROUNDS)
        for number in range(0 if short else rounds):
            for name in chosen if number % 2 == 0 else reversed(chosen):
                comparison.turn(name, f"round {number + 1} of {rounds}")
        options = {"clients": clients, "sharing": sharing}
        report("peers", where, comparison.figures(), as_json, [], options, [*notes, *comparison.notes])
    except (BenchFailed, IsthmusError) as error:
        print(f"bench: {error}", file=sys.stderr)
        raise SystemExit(1) from error


def _terminated(number: int, _: FrameType | None) -> None:
    """Exit through the context managers, which stop the servers and remove their data."""
    raise SystemExit(128 + number)


def installed(names: list[str]) -> tuple[list[str], list[str]]:
    """The systems whose servers are installed, and a note about each of the others."""
    chosen, notes = [], []
    for name in names:
        program = ENTRIES[name].needs
        if program is None or program.path() is not None:
            chosen.append(name)
        else:
            notes.append(
                f"{name} is skipped: {program.name} is not installed (Debian: apt-get install {program.package})"
            )
    return chosen, notes


class Comparison:
    """Samples of all rounds, and the figures that they give."""

    def __init__(self, seconds: float, sharing: int, clients: str, directory: Path | None) -> None:
        self._seconds = seconds
        self._sharing = sharing
        self._clients = clients
        self._directory = directory
        self.samples: dict[tuple[str, Work], list[Sample]] = {}
        """One sample per round."""
        self.lags: dict[str, list[LagSample]] = {}
        self.notes: list[str] = []

    def turn(self, name: str, when: str) -> None:
        """Start a system, run all phases on it, and stop it. Raises BenchFailed."""
        if self._directory is not None:
            self._directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="peers-", dir=self._directory) as place:
            system = ENTRIES[name].make(self._sharing)
            self.notes += [note for note in system.notes if note not in self.notes]
            print(f"{when}: {system.title}", file=sys.stderr)
            with Running(system, Path(place) / name), system.load() as load:
                if name in (THREE, THREE_EVEN):
                    assert isinstance(system, Isthmus)
                    self.lags.setdefault(name, []).append(self._lag(system, load))
                self._run(system, load, self._phase("put", 0, 32, limit_s=WARM_UP_S))
                for number, work in enumerate(WORKS, 2):
                    phase = self._phase(work.kind, number, work.connections)
                    self.samples.setdefault((name, work), []).append(self._run(system, load, phase))

    def turns(self, names: Sequence[str], rounds: int) -> None:
        """Start all systems, and let them take turns load by load. Raises BenchFailed."""
        with ExitStack() as stack:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="peers-", dir=self._directory)))
            running: dict[str, tuple[System, LoadProcess]] = {}
            for name in names:
                system = ENTRIES[name].make(self._sharing)
                self.notes += [note for note in system.notes if note not in self.notes]
                print(f"starting: {system.title}", file=sys.stderr)
                stack.enter_context(Running(system, place / name))
                running[name] = system, stack.enter_context(system.load())
            for system, load in running.values():
                self._run(system, load, self._phase("put", 0, 32, limit_s=WARM_UP_S))
            for number, work in enumerate(WORKS * rounds, 2):
                print(f"load {number - 1} of {len(WORKS) * rounds}: {work.title}", file=sys.stderr)
                for name in names if number % 2 == 0 else reversed(names):
                    sample = self._run(*running[name], self._phase(work.kind, number, work.connections))
                    self.samples.setdefault((name, work), []).append(sample)

    def _phase(
        self,
        kind: str,
        number: int,
        connections: int,
        count: int = KEYS_A_PHASE,
        rate: float = 0.0,
        limit_s: float | None = None,
    ) -> Phase:
        """The phase with this number, which decides its keys. `limit_s`: None for the duration of each load."""
        limit_s = self._seconds if limit_s is None else limit_s
        first = number * KEYS_A_PHASE
        return Phase(kind, first, count, 0, connections, BATCH_OBJECTS, rate, limit_s, clients=self._clients)

    def _run(self, system: System, load: LoadProcess, phase: Phase) -> Sample:
        """Run a phase and wait until the second cluster has all objects."""
        time.sleep(SETTLE_S)
        load_average = os.getloadavg()[0]
        before, generator_before = system.cpu(), cpu_time(load.pid)
        result = load.run(phase)
        accepted_s = time.perf_counter()
        system.drain()
        behind_s = time.perf_counter() - accepted_s
        after, generator_after = system.cpu(), cpu_time(load.pid)
        cpu = {name: _less(after[name], before[name]) for name in before}
        cpu[GENERATOR] = _less(generator_after, generator_before)
        leading = system.leading() if isinstance(system, Isthmus) else 0
        return Sample(system.title, result, result.seconds + behind_s, cpu, load_average, leading)

    def _lag(self, system: Isthmus, load: LoadProcess) -> LagSample:
        """Measure the lag. It runs before the other phases, since the sinks report lags since their start."""
        time.sleep(SETTLE_S)
        load_average = os.getloadavg()[0]
        count = int(LAG_RATE * self._seconds)
        with VisibilityProbe(system.urls("a"), system.urls("b"), "lag") as probe:
            result = load.run(self._phase("put", 1, LAG_CONNECTIONS, count, LAG_RATE))
        system.drain()
        links = [link for name in system.names("b") for link in system.nodes.sinks(name)]
        seen, sent = probe.found.after_answer_ms, probe.found.after_request_ms
        if not seen:
            raise BenchFailed(f"{system.title}: none of {probe.found.failed} objects arrived at the second cluster")
        return LagSample(
            system.title,
            result.objects,
            result.seconds,
            percentile(seen, 0.5),
            percentile(seen, 0.99),
            percentile(sent, 0.5),
            percentile(sent, 0.99),
            max(float(link["lag_ms_p50"] or 0) for link in links),
            max(float(link["lag_ms_p99"] or 0) for link in links),
            {**result.failed, **({"not replicated": probe.found.failed} if probe.found.failed else {})},
            load_average,
        )

    def figures(self) -> list[Figure]:
        """The figures of all measurements, then the ratios between systems."""
        found: list[Figure] = []
        for (name, work), samples in self.samples.items():
            found.append(figure_of(name, work, samples))
        for lags in self.lags.values():
            found += lag_figures(lags)
        for work in WORKS:
            found += self._compared(work, THREE, "etcd", AGAINST_ETCD[work], lambda sample: sample.cost_of(CLUSTER_A))
            found += self._compared(work, THREE, "nats", AGAINST_NATS.get(work), lambda sample: sample.cost)
            found += self._compared(work, THREE, THREE_EVEN, AGAINST_EVEN.get(work), lambda sample: sample.cost)
            found += self._compared(
                work, THREE, THREE_EVEN, FASTER_THAN_EVEN.get(work), lambda sample: sample.rate, "times_the_rate"
            )
            for many, few in ((THREE_MANY, THREE), (ONE_MANY, ONE)):
                found += self._compared(work, many, few, MORE_PARTITIONS, lambda sample: sample.cost)
        mine, theirs = self.lags.get(THREE), self.lags.get(THREE_EVEN)
        if mine is not None and theirs is not None:
            for part in ("seen_p50", "seen_p99"):
                quotients = [getattr(one, part) / getattr(two, part) for one, two in zip(mine, theirs, strict=True)]
                title = f"{THREE} against {THREE_EVEN}: lag {part[-3:]}"
                found.append(_ratio(title, quotients, "times_the_lag", LAG_OF_EVEN))
        return found

    def _compared(
        self,
        work: Work,
        name: str,
        other: str,
        target: Target | None,
        cost: Callable[[Sample], float],
        what: str = "times_the_CPU",
    ) -> list[Figure]:
        """The median ratio over the rounds; empty when one of the two systems was not measured."""
        mine, theirs = self.samples.get((name, work)), self.samples.get((other, work))
        if mine is None or theirs is None:
            return []
        quotients = [cost(one) / max(1e-9, cost(two)) for one, two in zip(mine, theirs, strict=True)]
        return [_ratio(f"{name} against {other}: {work.title}", quotients, what, target)]


def _ratio(title: str, quotients: Sequence[float], what: str, target: Target | None) -> Figure:
    median = statistics.median(quotients)
    values = {what: median, "least": min(quotients), "most": max(quotients)}
    return Figure(title, "fresh keys", values=values, target=target, measured=median)


def figure_of(name: str, work: Work, samples: list[Sample]) -> Figure:
    """Cost and rate of one system under one load, from the round with the median cost; costs of all rounds."""
    costs = [sample.cost for sample in samples]
    sample = samples[costs.index(statistics.median_low(costs))]
    values = {
        "accepted_per_s": sample.rate,
        "seconds_behind_at_the_end": sample.seconds - sample.result.seconds,
        "request_p50_ms": sample.result.p50_ms,
        "request_p99_ms": sample.result.p99_ms,
        "load_average": sample.load_average,
    }
    if ENTRIES[name].needs is None:
        values["requests_forwarded"] = float(sample.result.forwarded)
        values["nodes_that_lead"] = float(sample.leading)
    if len(samples) > 1:
        for number, other in enumerate(samples, 1):
            values[f"round_{number}_cost"] = other.cost
            values[f"round_{number}_load_average"] = other.load_average
    title = f"{sample.title}: {work.title}"
    return Figure(
        title,
        f"fresh keys, {VALUE_BYTES:,} bytes",
        sample.result.objects,
        sample.seconds,
        sample.cpu,
        {"cpu_s_per_100k_all_nodes": sample.cost, "cpu_s_per_100k_cluster_a": sample.cost_of(CLUSTER_A), **values},
        failed=sample.result.failed,
    )


def lag_figures(samples: list[LagSample]) -> list[Figure]:
    """The lag, from the round with the median p99."""
    worst = [sample.seen_p99 for sample in samples]
    sample = samples[worst.index(statistics.median_low(worst))]
    title = f"{sample.title}: from acknowledgement at A to read at B, PUT at {LAG_RATE:,.0f}/s"
    values = {
        "from_request_p50_ms": sample.from_request_p50,
        "from_request_p99_ms": sample.from_request_p99,
        "append_to_apply_p50_ms": sample.sink_p50,
        "append_to_apply_p99_ms": sample.sink_p99,
        "load_average": sample.load_average,
    }
    space = f"fresh keys, {VALUE_BYTES:,} bytes"
    p50 = Figure(title, space, sample.objects, sample.seconds, {}, values, LAG_P50, sample.seen_p50, sample.failed)
    return [p50, Figure(title, space, target=LAG_P99, measured=sample.seen_p99)]


def _less(after: CpuTime, before: CpuTime) -> CpuTime:
    return CpuTime(after.user - before.user, after.system - before.system)


if __name__ == "__main__":
    main()
