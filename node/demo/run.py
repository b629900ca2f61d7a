"""The demo from start to end: clusters up, history replayed, everything replicated, every key compared, clusters down.

    choose histories -> clusters up -> replay into east, killing one of its nodes and its ZooKeeper meanwhile
    -> wait until every replica is in sync and nothing is outstanding -> compare every key of both clusters -> down

Everything that it starts it stops, also on Ctrl-C and on SIGTERM; if it is killed, the supervisor ends the clusters.
Nodes and ZooKeepers that the user kills are restarted while it runs.
"""

from __future__ import annotations

import math
import secrets
import shlex
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from isthmus import config, node
from isthmus.node.demo.chaos import FailureInjector, ProcessControl
from isthmus.node.demo.client import FailoverClient, key_path
from isthmus.node.demo.history import DemoHistory, Expectation, GitHistory, HistoryFault, MadeHistory
from isthmus.node.demo.live_view import DemoProgress, DemoView
from isthmus.node.demo.outcome import DemoOutcome
from isthmus.node.demo.replay import HistoryReplay
from isthmus.node.demo.verify import VerifyResult, compare
from isthmus.node.demo.watch import DemoSnapshot, Watcher
from isthmus.node.local.clusters import LocalClusters
from isthmus.node.local.directory import READY_TIMEOUT_S
from isthmus.node.local.topology import load_topology
from isthmus.repl.metastore import embedded_zookeeper
from isthmus.repl.metastore.java import find_java
from isthmus.repl.model.errors import LocalFault

SOURCE: Final = "east"
"""The cluster that is written to; the other one receives the changes."""

TOPOLOGY: Final = Path(config.__file__).parent / "samples" / "two-clusters.toml"

CHANGES_MIN: Final = 5_000
"""A repository with fewer changes ends before anything can be seen or killed: a generated history follows."""

MADE_COUNT: Final = 8_000
"""Operations of the generated history. Six nodes on one machine spend 12 ms of CPU time on each, replicas and the
other cluster's included."""

REPLAY_SECONDS: Final = 100.0
"""How long the replay takes unless a rate is given: time to kill processes and to watch the recovery. A history too
long for it is replayed as fast as possible."""

SETTLE_STALL_S: Final = 120.0
"""The wait for replication ends after this time without progress. A killed node is back within ten seconds; a sink's
longest pause after errors is shorter."""

VIEW_INTERVAL_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """Options of a run. `rate` None: the replay takes REPLAY_SECONDS; 0: as fast as possible. `directory` None: a
    temporary one. `made_count`: length of the generated history, where one follows. `breaks`: processes are killed."""

    git: Path | None = None
    rate: float | None = None
    keep: bool = False
    seed: int | None = None
    directory: Path | None = None
    made_count: int = MADE_COUNT
    breaks: bool = True


@dataclass
class Demo:
    """A run: its outcome, and where the clusters are."""

    outcome: DemoOutcome
    directory: Path
    clusters: dict[str, Any] = field(default_factory=dict)
    sample_key: tuple[bytes, bytes] | None = None
    """Bucket and key of a small object to read with curl."""


def run_demo(options: DemoOptions, view: DemoView) -> Demo:
    """Run the demo. Raises IsthmusError when it cannot run, KeyboardInterrupt after stopping everything on Ctrl-C."""
    embedded_zookeeper.find_jars()  # before anything is read, made or started: an extra that lacks is said at once
    find_java()
    with ExitStack() as stack:
        stack.callback(view.close)
        stack.enter_context(_handling(signal.default_int_handler, signal.SIGTERM))
        histories = choose_histories(options, view)
        for history in histories:
            stack.callback(history.close)
        directory, temporary = _directory(options.directory)
        demo = Demo(DemoOutcome([history.title for history in histories]), directory)
        clusters = LocalClusters(load_topology(TOPOLOGY), directory, restart_nodes=True, auto_ports=True, owned=True)
        began_s = time.monotonic()
        try:
            view.note(f"clusters are in {directory}")
            demo.clusters = clusters.up(READY_TIMEOUT_S, lambda line: view.note(f"  {line}"))["clusters"]
            view.note(f"  up after {time.monotonic() - began_s:.0f} s")
            view.note("see every write cross, in a browser:")
            for line in dashboard_lines(demo):
                view.note(f"  {line}")
            with closing(_DemoRun(options, histories, demo, view)) as run:
                run.all()
            demo.outcome.total_seconds = _seconds_since(began_s)
        except BaseException as error:
            interrupted = isinstance(error, KeyboardInterrupt)
            with _handling(signal.SIG_IGN, signal.SIGINT, signal.SIGTERM):
                # Ctrl-C may have ended the reader of the output: the clusters stop all the same.
                with suppress(OSError):
                    view.close()
                    everything = "interrupted: stopping everything that was started"
                    view.note(everything if interrupted else "stopping the clusters")
                clusters.down()
                with suppress(OSError):
                    view.note("stopped")
                _remove_or_keep(directory, temporary and interrupted, view)
            raise
        with _handling(signal.SIG_IGN, signal.SIGINT, signal.SIGTERM):  # another Ctrl-C leaves none of them running
            if options.keep:
                clusters.keep()
            else:
                clusters.down()
                _remove_or_keep(directory, temporary and demo.outcome.equal, view)
        return demo


def choose_histories(options: DemoOptions, view: DemoView) -> list[DemoHistory]:
    """The repository's history and, where that is short or missing, a generated one. Raises HistoryFault when a
    repository that the user named cannot be read."""
    histories: list[DemoHistory] = []
    count = 0
    try:
        git = GitHistory(options.git if options.git is not None else _this_checkout())
        view.note(f"reading {git.title}")
        count = len(git.operations)
        view.note(f"  {count:,} changes on its first-parent line")
        histories.append(git)
    except HistoryFault as fault:
        if options.git is not None:
            raise
        view.note(f"no git history: {fault}")
    if count < CHANGES_MIN:
        seed = secrets.randbelow(1_000_000) if options.seed is None else options.seed
        made = MadeHistory(seed, options.made_count)
        follow = f"{options.made_count:,} follow, {made.title} (--seed {seed} repeats them)"
        view.note(f"fewer than {CHANGES_MIN:,} changes: {follow}")
        histories.append(made)
    return histories


class _DemoRun:
    """One run against clusters that serve."""

    def __init__(self, options: DemoOptions, histories: Sequence[DemoHistory], demo: Demo, view: DemoView) -> None:
        self._options = options
        self._histories = histories
        self._demo = demo
        self._outcome = demo.outcome
        self._view = view
        self._stopping = threading.Event()
        self._began_s = time.monotonic()
        self._https = {name: [node["http"] for node in cluster["nodes"]] for name, cluster in demo.clusters.items()}
        self._watcher = Watcher(demo.directory, demo.clusters, self._note)
        self._failures = FailureInjector(SOURCE, ProcessControl(demo.directory), self._note)
        total = sum(len(history.operations) for history in histories)
        rate = total / REPLAY_SECONDS if options.rate is None else options.rate
        self._replay = HistoryReplay(self._https[SOURCE], histories, rate)

    def close(self) -> None:
        """Stop the replay, close connections, remove the progress."""
        self._stopping.set()
        self._replay.stop()
        self._watcher.close()
        self._view.close()

    def all(self) -> None:
        """Replay, wait, compare; fills the outcome."""
        outcome = self._outcome
        self._replay_all()
        self._failures.finish()
        outcome.whole_seconds = self._wait_for_none("until every replica is in sync", lambda seen: seen.missing)
        outcome.in_sync = {c.name: f"{c.in_sync} of {c.replicas}" for c in self._watcher.latest.clusters}
        outcome.settle_seconds = self._wait_for_none("until nothing is outstanding", lambda seen: seen.outstanding)
        self._compare_all()
        self._watcher.look()
        outcome.breaks = self._failures.sentences
        outcome.cpu_seconds = self._watcher.cpu_seconds()
        outcome.restarts = self._watcher.restarts()

    def _replay_all(self) -> None:
        replay, outcome = self._replay, self._outcome
        targets = [f"{process.name} ({process.pid})" for process in self._watcher.look().processes[1:]]
        self._view.note(f"to break more, `kill -9` any of {', '.join(targets)}: it comes back")
        replay.start()
        while not replay.wait(VIEW_INTERVAL_S):
            snapshot = self._show("replay", "operations", replay.done_count, replay.total_count)
            if self._options.breaks and replay.total_count:
                self._failures.step(replay.done_count / replay.total_count, snapshot)
        assert replay.done_count == replay.total_count
        outcome.puts, outcome.deletes = replay.done["puts"], replay.done["deletes"]
        outcome.value_bytes = replay.done["bytes"]
        outcome.replay_seconds = round(replay.elapsed_s, 3)
        outcome.longest_pause_seconds = round(replay.longest_pause_s, 3)
        outcome.retries = dict(replay.failures())

    def _wait_for_none(self, phase: str, remaining: Callable[[DemoSnapshot], int | None]) -> float:
        """Wait until nothing remains in two snapshots in a row (a change between two counters is in one of them), as
        long as there is progress; the seconds that it took."""
        began_s = moved_s = seen_s = time.monotonic()
        fewest: float = math.inf
        count: int | None = None
        while time.monotonic() - moved_s <= SETTLE_STALL_S:
            snapshot = self._show(f"waiting {phase}", "", 0, 0)
            if snapshot.taken_s > seen_s:
                self._failures.step(1.0, snapshot)
                seen_s, before, count = snapshot.taken_s, count, remaining(snapshot)
                if before == count == 0:
                    return _seconds_since(began_s)
                if count is not None and count < fewest:
                    fewest, moved_s = count, seen_s
            time.sleep(VIEW_INTERVAL_S)
        self._outcome.outstanding = self._watcher.latest.why_outstanding()
        self._note(f"nothing moved for {SETTLE_STALL_S:.0f} s: {self._outcome.outstanding}")
        return _seconds_since(began_s)

    def _compare_all(self) -> None:
        began_s = time.monotonic()
        expected = [(history, history.expectation()) for history in self._histories]
        total = sum(len(end.live) + len(end.gone) for _, end in expected)
        verdict = VerifyResult()
        done = 0

        def progress(keys: int) -> None:
            nonlocal done
            done += keys
            self._show("comparing every key of both clusters", "keys", done, total)

        with ExitStack() as stack:
            readers = {
                name: stack.enter_context(closing(FailoverClient(urls, self._stopping)))
                for name, urls in self._https.items()
            }
            for history, end in expected:
                self._demo.sample_key = self._demo.sample_key or sample_key(history.bucket, end)
                compare(readers, history.bucket, end, verdict, progress)
        self._outcome.verdict = verdict
        self._outcome.compare_seconds = _seconds_since(began_s)

    def _note(self, line: str) -> None:
        """Print a note with the time since the clusters were up."""
        self._view.note(f"{time.monotonic() - self._began_s:5.0f} s  {line}")

    def _show(self, phase: str, unit: str, done: int, total: int) -> DemoSnapshot:
        snapshot = self._watcher.look()
        for cluster in snapshot.clusters:
            if cluster.name != SOURCE and cluster.lag_ms is not None:
                self._outcome.lag_p50_ms, self._outcome.lag_p99_ms = cluster.lag_ms
        elapsed_s = time.monotonic() - self._began_s
        self._view.update(DemoProgress(phase, unit, done, total, elapsed_s, self._replay.failures().total(), snapshot))
        return snapshot


def sample_key(bucket: bytes, expected: Expectation) -> tuple[bytes, bytes] | None:
    """A key to print on a terminal: small, and by its name a text if there is one."""
    small = [key for key, size in expected.sizes.items() if 0 < size < 4_000]
    texts = [key for key in small if key.endswith((b".md", b".txt", b".toml", b".py", b".json"))]
    chosen = min(texts or small, key=len, default=None)
    return None if chosen is None else (bucket, chosen)


def dashboard_lines(demo: Demo) -> list[str]:
    """The address of each cluster's dashboard, at its first node. The demo has no tokens, so no login is needed."""
    return [f"{cluster['nodes'][0]['admin']}/   # dashboard of {name}" for name, cluster in demo.clusters.items()]


def curl_lines(demo: Demo) -> list[str]:
    """Commands that read from clusters that were kept."""
    isthmus = _own_command()
    firsts = {name: cluster["nodes"][0] for name, cluster in demo.clusters.items()}
    lines = []
    if demo.sample_key is not None:
        path = key_path(*demo.sample_key)
        lines += [f"curl -si '{first['http']}{path}'   # a key in {name}" for name, first in firsts.items()]
    for name, first in firsts.items():
        admin = first["admin"]
        lines.append(f"curl -s '{admin}/admin/queues'   # queues of {name}; or: {isthmus} queue list --admin {admin}")
    lines.append(f"{isthmus} local down --dir {shlex.quote(str(demo.directory))}   # stops all of it")
    return lines


def _own_command() -> str:
    """The command of this program: its name where the shell finds it, else its path."""
    beside = Path(sys.executable).with_name("isthmus")
    found = shutil.which("isthmus")
    if not beside.exists() or (found is not None and Path(found).resolve() == beside.resolve()):
        return "isthmus"
    here = Path.cwd()
    return shlex.quote(str(beside.relative_to(here) if beside.is_relative_to(here) else beside))


def _this_checkout() -> Path:
    root = Path(node.__file__).resolve().parents[1]
    if not (root / ".git").exists():
        raise HistoryFault(f"{root} is not a git checkout")
    return root


def _directory(wanted: Path | None) -> tuple[Path, bool]:
    """(an empty directory, whether it is a temporary one). Raises LocalFault when `wanted` holds anything."""
    if wanted is None:
        return Path(tempfile.mkdtemp(prefix="isthmus-demo-")), True
    wanted.mkdir(parents=True, exist_ok=True)
    if any(wanted.iterdir()):
        raise LocalFault(f"{wanted} is not empty: the demo starts from nothing; name another --dir or remove it")
    return wanted.absolute(), False


def _remove_or_keep(directory: Path, remove: bool, view: DemoView) -> None:
    if remove:
        shutil.rmtree(directory, ignore_errors=True)
    else:
        view.note(f"data and logs are left in {directory}")


def _seconds_since(began_s: float) -> float:
    return round(time.monotonic() - began_s, 3)


@contextmanager
def _handling(handler: Any, *numbers: signal.Signals) -> Iterator[None]:
    """Handle these signals by `handler`."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
