"""A reload of a whole node in memory: what it takes over from its config file, and what it leaves to a restart."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import structlog

from tests.support.threaded_node import ThreadedNode, running_node
from tests.support.waiting import wait_until


def reload(node: ThreadedNode, file: Path, text: str) -> dict[str, Any]:
    """The event of a reload with this file."""
    file.write_text(text)
    assert node.node is not None
    with structlog.testing.capture_logs() as lines:
        node._loop.call_soon_threadsafe(node.node.request_reload)
        wait_until(lambda: any(line["event"] == "node.reloaded" for line in lines), "reloaded")
    return next(dict(line) for line in lines if line["event"] == "node.reloaded")


def test_a_reload_says_whether_a_changed_setting_needs_a_restart(tmp_path: Path) -> None:
    """The limits of the audit log are taken over; the form of the log, in the same table of the file, is not."""
    with running_node(tmp_path) as node:
        file = tmp_path / "node.toml"
        before = file.read_text()
        again = reload(node, file, f'{before}[log]\naudit_size = "1MB"\naudit_files = 3\n')
        assert (again["troubles"], again["changed_settings_need_a_restart"]) == ([], False)
        assert reload(node, file, f'{before}[log]\nformat = "text"\n')["changed_settings_need_a_restart"]


def test_requests_during_a_reload_are_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files may have changed after they were read: one more reload follows, however many requests came."""
    with running_node(tmp_path) as running, structlog.testing.capture_logs() as lines:
        node, loop = running.node, running._loop
        assert node is not None
        read, requested = node._credentials.reload, threading.Event()

        def request() -> None:
            for _ in range(3):
                node.request_reload()
            requested.set()

        def requested_meanwhile() -> list[str]:
            if not requested.is_set():
                loop.call_soon_threadsafe(request)
                requested.wait(10)
            return read()

        monkeypatch.setattr(node._credentials, "reload", requested_meanwhile)
        loop.call_soon_threadsafe(node.request_reload)
        wait_until(lambda: node._reload_task is not None and node._reload_task.done(), "all reloads are over")
        assert [line["event"] for line in lines].count("node.reloaded") == 2
