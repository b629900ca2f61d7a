"""`isthmus node run`: the log of a node that fails to start."""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import socket
import subprocess
from pathlib import Path

from isthmus.config.loader import load_file
from isthmus.node.cli.exit_codes import Exit
from isthmus.node.local.supervisor_client import last_line, node_command
from isthmus.node.observability.version import program_version
from tests.support.waiting import PATIENCE_S, wait_until


def test_a_start_that_fails_ends_in_an_event_with_the_exit_code(tmp_path: Path) -> None:
    """Every line is JSON: the first names the program's version, config file and machine, the last the error and the
    exit code; `last_line` returns the error's sentence."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        file = tmp_path / "n1.toml"
        file.write_text(
            f'[node]\nname = "n1"\ncluster = "east"\ndata_dir = "data"\n[listen]\nhttp = "{address}"\n'
            'admin = "127.0.0.1:0"\ncluster = "127.0.0.1:0"\n[metastore]\nhosts = "127.0.0.1:1"\n'
        )
        load_file(file)
        log = tmp_path / "log"
        with log.open("wb") as stderr:
            process = subprocess.Popen(node_command(file), stderr=stderr, cwd=tmp_path, env={**os.environ})
            assert process.wait(timeout=50) == Exit.LOCAL_FAULT
    told = [json.loads(line) for line in log.read_text().splitlines()]
    first, last = told[0], told[-1]
    assert (first["event"], first["file"], first["pid"]) == ("node.starting", str(file), process.pid)
    assert (first["version"], first["python"]) == (program_version(), platform.python_version())
    assert (first["platform"], first["node"]) == (platform.platform(), "n1")
    assert (last["event"], last["level"], last["exit_code"]) == ("node.failed", "critical", 5)
    assert address in last["sentence"]
    assert last_line(log) == last["sentence"]


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal (Linux)."""
    (mask,) = re.findall(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(mask, 16) >> (number - 1) & 1)


def test_signals_that_mean_nothing_here_end_no_node(tmp_path: Path) -> None:
    """SIGUSR1 and SIGUSR2, which log rotation sends to other servers, are ignored, also while a node starts; SIGTERM
    still ends it."""
    file = tmp_path / "n1.toml"
    file.write_text(
        '[node]\nname = "n1"\ncluster = "east"\ndata_dir = "data"\n[listen]\nhttp = "127.0.0.1:0"\n'
        'admin = "127.0.0.1:0"\ncluster = "127.0.0.1:0"\n[metastore]\nhosts = "127.0.0.1:1"\nconnect_timeout = "50s"\n'
    )
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        process = subprocess.Popen(node_command(file), stderr=stderr, cwd=tmp_path, env={**os.environ})
        try:
            wait_until(lambda: "node.starting" in log.read_text())
            for number in (signal.SIGUSR1, signal.SIGUSR2):
                process.send_signal(number)
            wait_until(lambda: catches(process.pid, signal.SIGTERM))
            assert process.poll() is None
            process.terminate()
            assert process.wait(timeout=PATIENCE_S) == Exit.OK
        finally:
            process.kill()
            process.wait()
