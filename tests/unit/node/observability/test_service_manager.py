"""A node's messages to the service manager that started it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from isthmus.node.observability.service_manager import STATUS_CHARS_MAX, ServiceManager
from tests.support.waiting import PATIENCE_S


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """A service manager's socket, and its address."""
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
        datagrams.bind(address)
        datagrams.settimeout(PATIENCE_S)
        yield address, datagrams


def received(datagrams: socket.socket) -> list[str]:
    """The lines of the next message."""
    return datagrams.recv(4096).decode().split("\n")


def test_each_state_is_one_message_in_the_manager_s_words(listening: tuple[str, socket.socket]) -> None:
    """Ready, reloading, stopping and alive are the names that systemd reads; a status is one line of bounded length."""
    address, datagrams = listening
    manager = ServiceManager({"NOTIFY_SOCKET": address})
    manager.ready("node east-1:\n up")
    assert received(datagrams) == ["READY=1", "STATUS=node east-1: up"]
    manager.reloading()
    reloading, since = received(datagrams)
    assert reloading == "RELOADING=1"
    assert int(since.removeprefix("MONOTONIC_USEC=")) > 0
    manager.stopping("SIGTERM")
    assert received(datagrams) == ["STOPPING=1", "STATUS=stopping: SIGTERM"]
    manager.alive()
    assert received(datagrams) == ["WATCHDOG=1"]
    manager.status("x" * 1_000)
    assert received(datagrams) == ["STATUS=" + "x" * STATUS_CHARS_MAX]


def test_a_socket_in_the_abstract_name_space_is_reached() -> None:
    """An address that begins with @ is abstract, as systemd writes it."""
    name = f"isthmus-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
        datagrams.bind("\0" + name)
        datagrams.settimeout(PATIENCE_S)
        ServiceManager({"NOTIFY_SOCKET": "@" + name}).alive()
        assert received(datagrams) == ["WATCHDOG=1"]


@pytest.mark.parametrize("environment", [{}, {"NOTIFY_SOCKET": "/nonexistent/notify", "WATCHDOG_USEC": "1000"}])
def test_without_a_manager_that_listens_nothing_fails(environment: dict[str, str]) -> None:
    """No variable, or a socket that is gone: messages are dropped."""
    manager = ServiceManager(environment)
    manager.ready("up")
    manager.alive()


def test_the_variables_do_not_reach_child_processes() -> None:
    """They are removed from the environment; otherwise a supervisor that the node starts could report in its place."""
    environment = {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "20000000", "WATCHDOG_PID": "7", "PATH": "/bin"}
    ServiceManager(environment, pid=7)
    assert environment == {"PATH": "/bin"}


@pytest.mark.parametrize(
    ("variables", "interval_s"),
    [
        ({"WATCHDOG_USEC": "20000000", "WATCHDOG_PID": "7"}, 10.0),
        ({"WATCHDOG_USEC": "20000000"}, 10.0),
        ({"WATCHDOG_USEC": "20000000", "WATCHDOG_PID": "8"}, 0.0),
        ({"WATCHDOG_USEC": "soon"}, 0.0),
        ({}, 0.0),
    ],
)
def test_the_manager_hears_twice_within_the_time_that_it_waits(variables: dict[str, str], interval_s: float) -> None:
    """The interval is half of WATCHDOG_USEC, if that is meant for this process; without it there is no watchdog."""
    assert ServiceManager({"NOTIFY_SOCKET": "/x", **variables}, pid=7).watchdog_interval_s == interval_s
