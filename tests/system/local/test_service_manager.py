"""A real node under a service manager: it reports ready, a reload, that it lives, and its stop."""

from __future__ import annotations

import configparser
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.system.local.real_nodes import PATIENCE_S, real_clusters

UNIT = Path(__file__).parents[3] / "deploy" / "systemd" / "isthmus@.service"


def wait_for(manager: socket.socket, wanted: str, seen: list[str]) -> None:
    """Receive messages, all lines of which go to `seen`, until one has the line `wanted`."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        lines = manager.recv(4096).decode().split("\n")
        seen += lines
        if wanted in lines:
            return
    raise AssertionError(f"{wanted} never came; there were {seen}")


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_node_reports_its_states_to_the_service_manager(tmp_path: Path) -> None:
    """Ready once it answers, reloading and ready again at SIGHUP, alive twice a second, stopping at SIGTERM."""
    address = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(address))
        manager.settimeout(PATIENCE_S)
        with real_clusters(tmp_path, {"east": 1}) as (server, clusters):
            (node,) = clusters["east"]
            node.write(server.hosts, "[replication]\nfactor = 1\npartitions = 3\n")
            node.start({"NOTIFY_SOCKET": str(address), "WATCHDOG_USEC": "1000000"})
            seen: list[str] = []
            wait_for(manager, "READY=1", seen)
            assert "RELOADING=1" not in seen
            wait_for(manager, "STATUS=node east-1 of cluster east: ready", seen)
            wait_for(manager, "WATCHDOG=1", seen)
            node.send(signal.SIGHUP)
            wait_for(manager, "RELOADING=1", seen)
            wait_for(manager, "READY=1", seen)
            assert node.stop() == 0
            wait_for(manager, "STOPPING=1", seen)
            assert "STATUS=stopping: SIGTERM" in seen


def unit() -> configparser.ConfigParser:
    """The unit file; keys that may be repeated are not in it twice."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(UNIT.read_text())
    return parser


def test_the_unit_runs_commands_that_exist() -> None:
    """The command of the unit file parses, up to its file."""
    service = unit()["Service"]
    assert service["Type"] == "notify"
    program, *words, file = shlex.split(service["ExecStart"])
    assert (program, file) == ("/opt/isthmus/bin/isthmus", "/etc/isthmus/%i.toml")
    command = [sys.executable, "-m", "isthmus.node.cli.main", *words, "--help"]
    assert subprocess.run(command, capture_output=True, timeout=60).returncode == 0


def test_a_faulty_file_is_no_reason_to_start_again(tmp_path: Path) -> None:
    """The exit code of a node with a fault in its file is one that the unit does not restart; it counts only where the
    main process ends with it, so that nothing runs before."""
    service = unit()["Service"]
    assert "ExecStartPre" not in service
    file = tmp_path / "node.toml"
    file.write_text("[node]\nnam = 1\n")
    command = [sys.executable, "-m", "isthmus.node.cli.main", "node", "run", str(file)]
    code = subprocess.run(command, capture_output=True, timeout=60).returncode
    assert str(code) in service["RestartPreventExitStatus"].split()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_the_unit_is_one_that_systemd_reads(tmp_path: Path) -> None:
    """systemd-analyze finds no fault in it, but that the program is not installed."""
    file = tmp_path / "isthmus@east-1.service"
    file.write_text(UNIT.read_text().replace("/opt/isthmus/bin/isthmus", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(file)], capture_output=True, text=True, timeout=60
    )
    faults = [line for line in done.stderr.splitlines() if file.name in line or "isthmus@" in line]
    assert not faults, faults
