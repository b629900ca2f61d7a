"""Children of a supervisor: owned, restarted, stopped, and never confused with other processes."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from isthmus.node.local import supervisor as supervision
from isthmus.node.local import supervisor_client
from isthmus.node.local.child_process import (
    LOG_BYTES_MAX,
    RESTART_DELAY_FIRST_MS,
    RESTART_DELAY_MAX_MS,
    STEADY_MS,
    ChildSpec,
    Restart,
    bound_log,
    restart_delay_ms,
)
from isthmus.node.local.process_id import ProcessId, wait_gone
from isthmus.node.local.supervisor import LINE_BYTES_MAX, Spec, Supervisor, short_path
from tests.support.waiting import PATIENCE_S, eventually, wait_until


def test_restart_pauses_double_up_to_a_bound_and_start_again_after_a_steady_run() -> None:
    """Quick deaths wait 100 ms, twice as long each time up to ten seconds; a steady run resets that."""
    delay, seen = 0, []
    for _ in range(10):
        following = restart_delay_ms(Restart.ALWAYS, 5, delay)
        assert following is not None
        seen.append(delay := following)
    assert seen[:3] == [RESTART_DELAY_FIRST_MS, 2 * RESTART_DELAY_FIRST_MS, 4 * RESTART_DELAY_FIRST_MS]
    assert seen[-1] == RESTART_DELAY_MAX_MS
    assert restart_delay_ms(Restart.ALWAYS, STEADY_MS, RESTART_DELAY_MAX_MS) == RESTART_DELAY_FIRST_MS
    assert restart_delay_ms(Restart.NEVER, STEADY_MS, 0) is None


async def test_a_killed_child_comes_back_and_its_end_is_reported(
    tmp_path: Path, supervised: Any, shell_child: Any
) -> None:
    """With policy always a killed child is restarted with a new pid; its restarts are counted, and the reason is
    kept."""

    async with supervised(tmp_path / "s", Spec((shell_child(),))) as client:
        before = await client.pid("a")
        os.kill(before, signal.SIGKILL)
        child = await client.eventually("a", lambda c: c["restarts"] == 1 and c["state"] == "running")
        assert child["process"]["pid"] != before
        assert "SIGKILL" in child["reason"]
        assert client.recorded()["children"]["a"] == child


async def test_a_child_that_is_not_restarted_stays_ended_until_started(
    tmp_path: Path, supervised: Any, shell_child: Any
) -> None:
    """With policy never a dead child stays dead and shows the reason; `start` starts it and leaves a live one
    unchanged, and `restart` gives it a new process."""

    child = shell_child(restart=Restart.NEVER, line="trap 'exit 7' USR1; touch set; while :; do sleep 0.01; done")
    async with supervised(tmp_path / "s", Spec((child,))) as client:
        pid = await client.pid("a")
        await client.ask("start", child="a")
        assert await client.pid("a") == pid
        await client.wait_for_path(tmp_path / "set")
        os.kill(pid, signal.SIGUSR1)
        ended = await client.eventually("a", lambda c: c["state"] == "ended")
        assert ended["reason"] == "exit code 7"
        await client.ask("start", child="a")
        second = await client.pid("a")
        await client.ask("restart", child="a")
        third = await client.pid("a")
        assert len({pid, second, third}) == 3
        await client.ask("stop-child", child="a")
        assert (await client.child("a"))["state"] == "stopped"


async def test_a_child_that_cannot_be_started_shows_why(tmp_path: Path, supervised: Any, shell_child: Any) -> None:
    """A command that does not exist is a reason, not a crash of the supervisor."""

    missing = ChildSpec("a", ("/no/such/program",), str(tmp_path), str(tmp_path / "a.log"), restart=Restart.NEVER)
    async with supervised(tmp_path / "s", Spec((missing, shell_child("b")))) as client:
        assert "No such file" in (await client.eventually("a", lambda c: c["state"] == "ended"))["reason"]
        assert (await client.child("b"))["state"] == "running"


async def test_children_of_higher_rank_stop_first(tmp_path: Path, supervised: Any, shell_child: Any) -> None:
    """A node has ended before the ZooKeeper that it uses is stopped."""
    order = tmp_path / "order"

    def leaving(name: str, rank: int) -> ChildSpec:
        line = f"trap 'sleep 0.1; echo {name} >> {order}; exit 0' TERM; touch {name}; while :; do sleep 0.01; done"
        child: ChildSpec = shell_child(name, line, rank=rank)
        return child

    async with supervised(tmp_path / "s", Spec((leaving("low", 0), leaving("high", 1)))) as client:
        for name in ("low", "high"):
            await client.wait_for_path(tmp_path / name)
    assert order.read_text().split() == ["high", "low"]


async def test_a_child_that_ignores_sigterm_is_killed_after_its_bound(
    tmp_path: Path, supervised: Any, shell_child: Any
) -> None:
    """Stopping takes the child's bound and no longer, and nothing is left."""

    async def run() -> ProcessId | None:
        stubborn = shell_child(line="trap '' TERM; touch set; while :; do sleep 0.01; done", stop_timeout_ms=200)
        async with supervised(tmp_path / "s", Spec((stubborn,))) as client:
            await client.wait_for_path(tmp_path / "set")
            return ProcessId.of(await client.pid("a"))

    process = await run()
    assert process is not None
    assert not process.alive()


def test_the_children_of_a_killed_supervisor_are_taken_over(launched: Path, shell_child: Any) -> None:
    """The children keep running undisturbed; the next supervisor keeps those of unchanged command under the same pid,
    restarts them when they die, and stops those that are no longer wanted."""
    directory = launched
    kept, changed, dropped = shell_child("kept"), shell_child("changed"), shell_child("dropped")
    state = supervisor_client.launch(directory, Spec((kept, changed, dropped)))
    old = {name: ProcessId.from_json(child["process"]) for name, child in state["children"].items()}
    first = ProcessId.from_json(state["supervisor"])
    assert first is not None
    assert first.send(signal.SIGKILL)
    assert wait_gone(first, PATIENCE_S)
    assert supervisor_client.running_state(directory) is None
    assert supervisor_client.recorded_children(directory) == old
    again = shell_child("changed", "exec sleep 2000")
    state = supervisor_client.launch(directory, Spec((kept, again)))
    new = {name: ProcessId.from_json(child["process"]) for name, child in state["children"].items()}
    kept_process, changed_process, dropped_process = old["kept"], old["changed"], old["dropped"]
    assert kept_process is not None
    assert changed_process is not None
    assert dropped_process is not None
    assert new["kept"] == kept_process
    assert kept_process.alive()
    assert new["changed"] != changed_process
    assert not changed_process.alive()
    assert not dropped_process.alive()
    kept_process.send(signal.SIGKILL)

    wait_until(lambda: supervisor_client.ask(directory, {"do": "status"})["children"]["kept"]["restarts"])
    assert supervisor_client.stop(directory)
    assert supervisor_client.recorded_children(directory) == {}


def test_children_left_by_a_killed_supervisor_can_be_stopped_without_one(launched: Path, shell_child: Any) -> None:
    """`stop` finds them by the state file."""
    directory = launched
    state = supervisor_client.launch(directory, Spec((shell_child(),)))
    first, child = (ProcessId.from_json(raw) for raw in (state["supervisor"], state["children"]["a"]["process"]))
    assert first is not None
    assert child is not None
    first.send(signal.SIGKILL)
    assert wait_gone(first, PATIENCE_S)
    assert supervisor_client.stop(directory)
    assert not child.alive()
    assert not supervisor_client.stop(directory)


def start_sleeper() -> subprocess.Popen[bytes]:
    """A process that no supervisor started."""
    return subprocess.Popen(["sleep", "1000"])


@pytest.mark.parametrize("wrong", ["start_ticks", "boot_id"])
async def test_a_recorded_pid_reused_by_a_foreign_process_is_left_alone(
    wrong: str, tmp_path: Path, supervised: Any, shell_child: Any
) -> None:
    """A pid of another start time or boot is neither taken over nor stopped."""
    stranger = start_sleeper()
    try:
        process = ProcessId.of(stranger.pid)
        assert process is not None
        raw = process.to_json() | ({"start_ticks": process.start_ticks - 1} if wrong == "start_ticks" else {wrong: "x"})
        child = shell_child()
        directory = tmp_path / "s"
        directory.mkdir()
        recorded = {"process": raw, "command": child.digest()}
        (directory / "state.json").write_text(json.dumps({"children": {"a": recorded, "gone": recorded}}))
        async with supervised(directory, Spec((child,))) as client:
            assert await client.pid("a") != stranger.pid
        assert not supervisor_client.stop(directory)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


async def test_without_its_owner_a_supervisor_lingers_and_ends(
    tmp_path: Path, supervised: Any, shell_child: Any
) -> None:
    """After the owner's end it waits for the linger time, unless another process becomes owner; then it stops all."""
    first, second = (start_sleeper() for _ in range(2))
    owner, successor = ProcessId.of(first.pid), ProcessId.of(second.pid)
    assert owner is not None
    assert successor is not None

    async with supervised(tmp_path / "s", Spec((shell_child(),), owner, linger_ms=3_000)) as client:
        first.kill()
        first.wait()
        await client.ask("own", owner=successor.to_json(), linger_ms=300)
        await asyncio.sleep(3.4)  # longer than both
        child = ProcessId.of(await client.pid("a"))
        assert child is not None
        second.kill()
        second.wait()
        await client.wait_for_path(tmp_path / "s" / "supervisor.sock", exists=False)
        assert not child.alive()


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"{}\n",
        b"[1]\n",
        b"\xff\n",
        b'{"do": "dance"}\n',
        b'{"do": "start", "child": "nobody"}\n',
        b'{"do": "start"}\n',
        b'{"do": "own", "owner": 3, "linger_ms": "soon"}\n',
        b"x" * (LINE_BYTES_MAX + 10) + b"\n",
    ],
)
async def test_a_line_that_is_no_command_is_answered_with_an_error(
    line: bytes, tmp_path: Path, supervised: Any, shell_child: Any
) -> None:
    """The answer to any other input on the socket is an error in JSON, and the children keep running."""

    def send(directory: Path) -> bytes:
        with short_path(directory) as folder, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(PATIENCE_S)
            sock.connect(f"{folder}/supervisor.sock")
            sock.sendall(line)
            return sock.makefile("rb").readline()

    async with supervised(tmp_path / "s", Spec((shell_child(),))) as client:
        answer = json.loads(await asyncio.to_thread(send, tmp_path / "s"))
        assert answer["ok"] is False
        assert answer["error"]
        assert (await client.child("a"))["state"] == "running"


async def test_a_directory_with_a_long_name_serves(tmp_path: Path, supervised: Any, shell_child: Any) -> None:
    """The 107 bytes of a socket's address limit no directory."""

    async with supervised(tmp_path / ("x" * 200), Spec((shell_child(),))) as client:
        assert (await client.child("a"))["state"] == "running"


async def test_the_socket_is_the_users_alone(tmp_path: Path, supervised: Any, shell_child: Any) -> None:
    """Other users of the machine cannot stop these children."""

    async with supervised(tmp_path / "s", Spec((shell_child(),))):
        assert (tmp_path / "s" / "supervisor.sock").stat().st_mode & 0o777 == 0o600


def test_an_output_file_over_its_limit_is_truncated(tmp_path: Path) -> None:
    """The old contents are kept once, in FILE.1; a file within the limit stays."""
    path = tmp_path / "out.log"
    path.write_text("x" * 100)
    bound_log(path, limit_bytes=100)
    assert path.stat().st_size == 100
    bound_log(path, limit_bytes=99)
    assert path.stat().st_size == 0
    assert (tmp_path / "out.log.1").read_text() == "x" * 100


def test_a_supervisor_that_cannot_start_is_reported_with_its_last_output(tmp_path: Path, shell_child: Any) -> None:
    """A directory that is a file is a local fault in one line."""
    from isthmus.repl.model.errors import LocalFault

    (tmp_path / "file").write_text("")
    with pytest.raises(LocalFault, match="cannot start a supervisor") as caught:
        supervisor_client.launch(tmp_path / "file", Spec((shell_child(),)))
    assert "\n" not in str(caught.value)


async def test_no_output_file_of_the_directory_grows_for_ever(
    tmp_path: Path, supervised: Any, shell_child: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor's own log is begun again like those of its children: one that cannot start fills it for months."""
    monkeypatch.setattr(supervision, "LOG_CHECK_S", 0.02)

    directory = tmp_path / "s"
    async with supervised(directory, Spec((shell_child(),))):
        logs = [supervisor_client.log_file(directory), Path(shell_child().log)]
        for log in logs:
            with log.open("ab") as file:
                file.truncate(LOG_BYTES_MAX + 1)
        await eventually(lambda: all(log.stat().st_size <= LOG_BYTES_MAX for log in logs))


@pytest.mark.parametrize("turns", range(6))
async def test_a_caller_that_connects_as_the_supervisor_stops_gets_an_answer(tmp_path: Path, turns: int) -> None:
    """In any turn of the loop the connection is accepted, answered and closed. asyncio drops a connection that is
    accepted in the turn in which its server closes, and leaves the socket open."""
    supervisor = Supervisor(tmp_path, Spec(()))
    running = asyncio.create_task(supervisor.run())
    while not (tmp_path / "supervisor.sock").exists():
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    with short_path(tmp_path) as folder, socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(PATIENCE_S)
        caller.connect(f"{folder}/supervisor.sock")
        caller.sendall(b'{"do": "status"}\n')
        for _ in range(turns):
            await asyncio.sleep(0)
        supervisor._stop.set()  # a signal would come turns later
        await running
        assert json.loads(caller.recv(65_536))["ok"] is True
    gc.collect()  # an unclosed socket fails the test
