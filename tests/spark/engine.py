"""Engines for tests: Spark programs in processes of their own, `spark-submit`, and a standalone master with workers.

All on loopback with small heaps. `BARE` is an interpreter like that of a cluster's workers: it has the packages but not
Isthmus, so a worker can import Isthmus only from `--py-files`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyspark
from pyspark import SparkContext

REPOSITORY: Final = Path(__file__).resolve().parents[2]
SPARK_HOME: Final = Path(pyspark.__file__).parent
PATIENCE_S: Final = 180.0

PATIENCE: Final = "spark.python.authenticate.socketTimeout"
"""Setting of Spark: how long a Python worker may take to connect, by default 15 s. A local session gives a job up when
one worker takes longer."""

CONF: Final = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    PATIENCE: "120s",
}
"""Small, and patient: a machine that is busy with others lets Python's workers wait."""


def environment(**more: str) -> dict[str, str]:
    """The environment for Spark's scripts: this interpreter, this Spark, loopback."""
    env = {
        **os.environ,
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": f"--conf {PATIENCE}={CONF[PATIENCE]} pyspark-shell",  # without spark-submit
    }
    env.pop("PYSPARK_GATEWAY_PORT", None)
    return {**env, **more}


def bare(directory: Path) -> Path:
    """An interpreter with the packages of this one, but without Isthmus."""
    path = directory / "bare-python"
    site = sysconfig.get_path("purelib")
    path.write_text(
        f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{site}" exec "{sys.executable}" -S "$@"\n', encoding="utf-8"
    )  # -S: no .pth files, so packages installed in editable mode are absent
    path.chmod(0o755)
    return path


def worker_zip(directory: Path) -> Path:
    """The package in an archive for --py-files, laid out as in the wheel. Spark puts the archive before PYTHONPATH, so
    the driver, too, imports all of Isthmus from it."""
    path = directory / "workers.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.write(REPOSITORY / "isthmus" / "__init__.py", "isthmus/__init__.py")
        for package in sorted(entry for entry in (REPOSITORY / "isthmus").iterdir() if entry.is_dir()):
            for source in sorted(package.resolve().rglob("*.py")):
                file.write(source, Path("isthmus", package.name) / source.relative_to(package.resolve()))
    return path


def submitted(master: str, arguments: Sequence[str], cwd: Path, **env: str) -> subprocess.Popen[str]:
    """`spark-submit` with these arguments, under way, in a process group of its own."""
    conf = [part for name, value in CONF.items() for part in ("--conf", f"{name}={value}")]
    return subprocess.Popen(
        [str(SPARK_HOME / "bin" / "spark-submit"), "--master", master, *conf, *arguments],
        cwd=cwd, env=environment(**env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def ended(process: subprocess.Popen[str], timeout_s: float = 600) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a submitted application; kill it when it takes too long."""
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"still running after {timeout_s:.0f} s: {err[-4_000:]}") from None
    return process.returncode, out, err


def free_port() -> int:
    """A port of loopback that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class StandaloneSpark:
    """A master and two workers of one core each."""

    def __init__(self, directory: Path, python: Path | None = None) -> None:
        self.master = f"spark://127.0.0.1:{free_port()}"
        self._log = directory / "engine.log"
        env = environment(SPARK_WORKER_DIR=str(directory / "work"), SPARK_DAEMON_MEMORY="256m", SPARK_NO_DAEMONIZE="1")
        env["PYSPARK_PYTHON"] = str(python or sys.executable)
        launch = str(SPARK_HOME / "bin" / "spark-class")
        host, port = self.master.removeprefix("spark://").split(":")
        worker = ["--cores", "1", "--memory", "600m", "--webui-port", "0", self.master]
        with self._log.open("wb") as log:
            self._processes = [
                subprocess.Popen(
                    [launch, f"org.apache.spark.deploy.{name}", *arguments],
                    env=env, stdout=log, stderr=log, start_new_session=True,
                )
                for name, arguments in (
                    ("master.Master", ["--host", host, "--port", port, "--webui-port", "0"]),
                    ("worker.Worker", worker),
                    ("worker.Worker", worker),
                )
            ]  # fmt: skip
        deadline_s = time.monotonic() + PATIENCE_S
        while self._text().count("Successfully registered with master") < 2:
            assert time.monotonic() < deadline_s, self._text()[-4_000:]
            time.sleep(0.5)

    def _text(self) -> str:
        return self._log.read_text(errors="replace")

    def executors(self) -> list[int]:
        """Process ids of the executors that run now."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                line = path.read_bytes()
            except OSError:
                continue
            if b"CoarseGrainedExecutorBackend" in line and self.master.removeprefix("spark://").encode() not in line:
                parent = _parent(int(path.parent.name))
                if parent in {process.pid for process in self._processes}:
                    found.append(int(path.parent.name))
        return found

    def down(self) -> None:
        """End it, executors first."""
        for process in reversed(self._processes):
            os.killpg(process.pid, signal.SIGTERM)
        for process in self._processes:
            process.wait(60)


def _parent(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[1])


@contextmanager
def standalone(directory: Path, python: Path | None = None) -> Iterator[StandaloneSpark]:
    """A standalone cluster, stopped at the end."""
    made = StandaloneSpark(directory, python)
    try:
        yield made
    finally:
        made.down()


def program(path: Path, text: str, *arguments: str, timeout_s: float = 600, **env: str) -> Any:
    """Run a Spark program with this interpreter; returns the last line that it prints, decoded from JSON."""
    path.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(path), *arguments],
        cwd=path.parent, env=environment(**{"PYTHONPATH": str(REPOSITORY), **env}), capture_output=True, text=True,
        timeout=timeout_s, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4_000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def end_driver() -> None:
    """End the Java process of earlier sessions of this process, so that the next session starts one, whose log is its
    own."""
    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(PATIENCE_S)
        SparkContext._gateway = SparkContext._jvm = None


def wait_until(
    what: str, holds: Any, timeout_s: float = PATIENCE_S, process: subprocess.Popen[str] | None = None
) -> Any:
    """Wait until `holds()`, and return its result. Raises AssertionError at once when `process`, which is to bring it
    about, has ended."""
    deadline_s = time.monotonic() + timeout_s
    while not (found := holds()):
        assert process is None or process.poll() is None, f"ended too early: {what}"
        assert time.monotonic() < deadline_s, f"never: {what}"
        time.sleep(0.1)
    return found
