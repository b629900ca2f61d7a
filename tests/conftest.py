"""Rules for all tests: a test leaves nothing running, and no test is skipped silently.

Markers are explained in pyproject.toml. Fixtures that several folders share are in tests/support; a folder's conftest
imports those that it uses.
"""

from __future__ import annotations

import ast
import asyncio
import faulthandler
import gc
import inspect
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from functools import cache
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import hypothesis
import pytest

import isthmus
from isthmus.repl.unforeseen import unforeseen
from tests.support.log_watch import LogFiles, LogWatch, allowed_of, unexpected
from tests.support.samples import share

GRACE_S: Final = 5.0
"""How long threads and children may take to end after a test that asked them to; a guess for a loaded machine."""

os.environ["ISTHMUS_CONTEXTS"] = os.devnull + "/none"
"""Commands under test use no context of the person who runs the tests."""

hypothesis.settings.register_profile(
    "isthmus",
    max_examples=share(50),
    deadline=None,
    derandomize="CI" in os.environ,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],  # a busy machine's delay is not a property of the test
)
hypothesis.settings.load_profile("isthmus")

TOOLS: Final = {
    "network": ("ip", "tc", "iptables", "nsenter"),
    "disks": ("mkfs.ext4", "mount", "losetup"),
    "promtool": ("promtool",),
    "browser": ("chromium",),
}
"""Marker -> the programs that its tests run."""

TOGETHER: Final = re.compile(
    r"tests/simulation/cluster/test_simulation\.py::test_(no_invariant_breaks\[|everything_happens)"
    r"|tests/simulation/cluster/test_reaps\.py::test_(nothing_comes_back|all_of_it_happens)"
    r"|tests/contract/test_metastore(_cluster)?\.py::.*zookeeper"
    r"|tests/component/http/test_(queue_fetch|queue_push|riak_python_client)\.py"
    r"|tests/component/node/test_metrics\.py"
    r"|tests/component/client/test_\w+\.py"
    r"|tests/project/test_(conventions|docs_site|packaging|client_distribution|client_page)\.py"
    r"|tests/(system/dashboard|spark)/"
)
"""Tests of a file that stay in one process: some check totals of the others, others share fixtures that are slow to
make, or continue what the tests before did to them.

xdist's own marker for that, xdist_group, has no effect with pytest 9.2, which keeps node ids elsewhere.
"""

KINDS: Final = ("system", "spark", "component", "contract", "unit", "project", "simulation")
"""Folders of tests in the order of a run: from those that wait longest for processes, over short ones, to those that
compute."""

TIMING: Final = "timing"
"""The marker of tests that measure time, and the name of their group: they run one after the other in one process."""

_left_out: Counter[str] = Counter()
"""Tests that `-m` deselected, by the markers that they have; with `-n` each worker counts all of them."""

_shared: set[threading.Thread | int] = set()
"""Threads and children that fixtures of wider scope than one test have started; they end with their fixture."""


def running() -> set[threading.Thread | int]:
    """Living threads of this process, and process ids of its living children (Linux; elsewhere threads alone)."""
    found: set[threading.Thread | int] = set(threading.enumerate())
    for listing in Path("/proc/self/task").glob("*/children"):
        try:
            children = [int(pid) for pid in listing.read_text().split()]
        except FileNotFoundError:  # a thread that ended meanwhile
            continue
        found.update(pid for pid in children if _is_alive(pid))
    return found


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def _described(one: threading.Thread | int) -> str:
    if isinstance(one, threading.Thread):
        return f"thread {one.name}"
    try:
        command = Path(f"/proc/{one}/cmdline").read_text().replace("\0", " ").strip()
    except OSError:
        command = "already gone"
    return f"process {one} ({command[:200]})"


class NoSecondCopies(MetaPathFinder):
    """Refuses to import a package of ours from the checkout's root, where it would be a second copy of every class."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        """See importlib."""
        if f"isthmus.{fullname}" in isthmus.FoldersBeside.names:
            raise ImportError(f"import isthmus.{fullname}: {fullname} alone would be a second copy of it")


sys.meta_path.insert(0, NoSecondCopies())


class SharedFixtures:
    """A plugin that records what module and session fixtures start, however late they are requested.

    It is a separate object, since pytest calls no hook of a conftest in a subfolder for session fixtures.
    """

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        """Around the set-up of each fixture."""
        if fixturedef.scope == "function":
            return (yield)
        before = running()
        result = yield
        _shared.update(running() - before)
        return result


class TimeoutsOfWorkers:
    """A plugin for the workers of `-n`: shows where a test that takes too long is stuck.

    pytest-timeout would write it to the worker's stdout, which is /dev/null, and end the process without a message. The
    more workers share a core, the more time a test has.
    """

    def __init__(self, workers: int) -> None:
        self._stderr: Final = os.fdopen(os.dup(2), "w")  # the run's own; tests have their output captured
        self._longer: Final = max(1.0, workers / (os.cpu_count() or 1))
        self._clock: Final = time.monotonic  # tests may replace it
        self._sleep: Final = time.sleep
        self._running: tuple[str, float, float] | None = None
        """The test that runs, how long it may take, and when that time is over."""
        threading.Thread(target=self._watch, name="time-outs", daemon=True).start()

    def _watch(self) -> None:
        """One thread for all tests: one each would cost more than most tests take."""
        while True:
            self._sleep(0.5)
            running = self._running
            if running is None or self._clock() < running[2]:
                continue
            print(f"\nTimeout: {running[0]} takes longer than {running[1]:g} s", file=self._stderr, flush=True)
            faulthandler.dump_traceback(self._stderr)
            os._exit(1)

    @pytest.hookimpl(optionalhook=True)
    def pytest_timeout_set_timer(self, item: Any, settings: Any) -> bool:
        """Replaces pytest-timeout's own thread."""
        timeout_s = settings.timeout * self._longer
        self._running = item.nodeid, timeout_s, self._clock() + timeout_s
        return True

    @pytest.hookimpl(optionalhook=True)
    def pytest_timeout_cancel_timer(self) -> bool:
        """The test has ended."""
        self._running = None
        return True


def pytest_configure(config: pytest.Config) -> None:
    """Runs once, before anything is collected."""
    config.pluginmanager.register(SharedFixtures())
    given: dict[str, Any] | None = getattr(config, "workerinput", None)
    if given is not None:
        config.pluginmanager.register(TimeoutsOfWorkers(given["workercount"]))


@pytest.fixture(autouse=True)
def nothing_left_running() -> Iterator[None]:
    """Fails a test that leaves a thread or a child process behind."""
    before = running()
    yield
    deadline = time.monotonic() + GRACE_S
    while left := running() - before - _shared:
        if time.monotonic() > deadline:
            pytest.fail("left running: " + ", ".join(sorted(_described(one) for one in left)))
        time.sleep(0.01)


WATCHED: Final = (
    "tests/component/",
    "tests/system/",
    "tests/spark/",
    "tests/unit/repl/coordinator/",
    "tests/unit/queues/",
)
"""Folders whose tests have real nodes, or parts of one that serve."""


@pytest.fixture(autouse=True)
def no_unexpected_error_is_logged(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Fails a test whose nodes log an error that it does not name (`tests.support.log_watch`)."""
    base = tmp_path_factory.getbasetemp()
    if not request.node.nodeid.startswith(WATCHED):
        _unwatched.add(base)
        yield
        return
    files = _log_files.setdefault(base, LogFiles(base))
    if base in _unwatched:
        _unwatched.discard(base)
        files.errors()  # those of tests that may log what they like
    watch = LogWatch()
    with watch.watching():
        yield
    found = unexpected([*watch.errors, *files.errors()], allowed_of(request.node))
    if found:
        shown = "\n".join(f"{each.event}: {each.text[:1500]}" for each in found[:10])
        pytest.fail(f"{len(found)} errors were logged that the test does not name:\n{shown}")


@pytest.fixture(autouse=True)
def defects_of_a_test_are_its_own() -> Iterator[None]:
    """What a test injects is no finding of nodes that later tests run in this process."""
    yield
    unforeseen._defects.clear()


_log_files: dict[Path, LogFiles] = {}
"""By the folder of this process's temporary files."""

_unwatched: set[Path] = set()
"""Those in which tests outside of WATCHED have run since the last watched one."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test in an event loop of its own: in virtual time if its nearest marker asks for it."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    loop_factory = None
    marker = pyfuncitem.get_closest_marker("virtual_time")
    if marker is not None and marker.args != (False,):
        from tests.support.virtual_time import VirtualTimeLoop

        loop_factory = VirtualTimeLoop
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(pyfuncitem.obj(**arguments))
    return True


@cache
def timing_tests(path: Path) -> frozenset[str]:
    """Functions of a test module that are decorated with the marker `timing`.

    Read from the source: the process that spreads the tests over workers knows node ids alone."""
    source = path.read_text()
    if f"pytest.mark.{TIMING}" not in source:
        return frozenset()
    return frozenset(
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and any(ast.unparse(each) == f"pytest.mark.{TIMING}" for each in node.decorator_list)
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave out of garbage collections all that is collected: modules and tests live as long as the process."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests whose requirements this machine lacks, with the reason. Workers run the tests in the order of
    KINDS."""
    if hasattr(config, "workerinput"):
        places = {kind: place for place, kind in enumerate(KINDS)}
        items.sort(key=lambda item: places.get(item.nodeid.removeprefix("tests/").partition("/")[0], 0))
    for item in items:
        if item.get_closest_marker(TIMING) and getattr(item, "originalname", "") not in timing_tests(item.path):
            raise pytest.UsageError(
                f"{item.nodeid}: the marker {TIMING} belongs to the function itself, as a decorator"
            )
    lacking = {"root": "needs root"} if os.geteuid() != 0 else {}
    if any(item.get_closest_marker("strace") for item in items) and not _strace_works():
        lacking["strace"] = "needs the system package strace, and leave to trace"
    for marker, tools in TOOLS.items():
        missing = [tool for tool in tools if shutil.which(tool) is None]
        if missing:
            lacking[marker] = f"needs {', '.join(missing)}"
    for item in items:
        for marker, reason in lacking.items():
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


def _strace_works() -> bool:
    strace = shutil.which("strace")
    if strace is None:
        return False
    traced = subprocess.run([strace, "-o", os.devnull, "true"], capture_output=True, timeout=30, check=False)
    return traced.returncode == 0


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Counts the tests that `-m` left out."""
    for item in items:
        for marker in ("slow", "root", "strace", "promtool", "browser"):
            if item.get_closest_marker(marker):
                _left_out[marker] += 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    """With `--dist loadscope`: spread tests one by one, except those that stay together or measure time.

    Every third worker begins with tests that compute, the others with those that wait for processes: together they fill
    the cores. Both reach the short ones last, and so end at the same time.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):
        def _assign_work_unit(self, node: Any) -> None:
            if int(node.gateway.id.removeprefix("gw")) % 3 == 0:
                self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
            super()._assign_work_unit(node)

        def _split_scope(self, nodeid: str) -> str:
            path, _, test = nodeid.partition("::")
            if TOGETHER.match(nodeid):
                return path
            return TIMING if test.partition("[")[0] in timing_tests(config.rootpath / path) else nodeid

    return Scheduler(config, log) if config.getvalue("dist") == "loadscope" else None


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Adds a worker's counts; a crashed worker has sent none."""
    counted = getattr(node, "workeroutput", {}).get("left_out", {})
    _left_out.update(Counter(counted) - _left_out)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """With ISTHMUS_NO_SKIPS a skipped test fails the run: there a skip would mean that the machine lacks something."""
    sent: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if sent is not None:  # of a worker: the process that reports decides
        sent["left_out"] = dict(_left_out)
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if "ISTHMUS_NO_SKIPS" in os.environ and reporter is not None and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints how many tests were left out, and how to run them."""
    if _left_out:
        counts = ", ".join(f"{count} {marker}" for marker, count in sorted(_left_out.items()))
        terminalreporter.write_line(f"left out by marker: {counts} (`make test-all` runs them)")
    skipped = len(terminalreporter.stats.get("skipped", []))
    if skipped and "ISTHMUS_NO_SKIPS" in os.environ:
        terminalreporter.write_line(f"ISTHMUS_NO_SKIPS: {skipped} skipped tests fail this run")
