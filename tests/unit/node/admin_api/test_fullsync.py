"""What operators may mistype at full-sync's admin paths: refused with what would be right, and nothing is kept."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.aae.scheduling.alarm import Alarm
from isthmus.aae.scheduling.check import PeerChecker
from isthmus.aae.scheduling.history import History, PeerHistory
from isthmus.aae.scheduling.scheduler import CheckScheduler
from isthmus.config.settings import FullSyncSettings
from isthmus.node.admin_api.fullsync import FullSyncAdmin
from isthmus.node.services.cluster_query import ClusterQuery
from isthmus.node.services.fullsync_query import FULLSYNC_STATUS, FullSyncPart
from isthmus.repl.clock import SystemTime
from tests.support.fullsync_fakes import FakeMembers

WEST = FullSyncSettings("west", "http://10.0.0.7:8098", "to-west")


class IdleChecker(PeerChecker):
    """Checks nothing."""

    def __init__(self) -> None:
        self.named = {}

    @property
    def cluster(self) -> bytes | None:
        """See Checker."""
        return None

    def close(self) -> None:
        """See Checker."""


class SilentAlarm(Alarm):
    """Never rings."""

    def __init__(self) -> None:
        pass

    def set_at(self, wall_ms: int, call: Any) -> None:
        """See Alarm."""

    def stop(self) -> None:
        """See Alarm."""


def manager_in(directory: Path) -> CheckScheduler:
    """A manager that has nothing to do."""
    return CheckScheduler(
        [WEST],
        node="n1",
        checkers=SimpleNamespace(open=lambda _: IdleChecker()),  # type: ignore[arg-type]
        history=History(directory, 0),
        alarm=SilentAlarm(),
        members=FakeMembers(),
        queue_types=FakeMembers(),
        time=SystemTime(),
    )


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("set-range", {"peer": "west", "since_ms": 0, "before_ms": 10**30}),
        ("set-range", {"peer": "west", "since_ms": 0, "before_ms": 1, "bucket": "\ud800"}),
        ("suspend", {"peer": "west", "reason": "\ud800"}),
        ("suspend", {"by": "\udfff"}),
        ("run", {"peer": "west", "kind": "none"}),
        ("?results=" + 5_000 * "9", None),
    ],
)
async def test_a_mistyped_value_is_refused_and_nothing_is_stored(
    path: str, body: dict[str, Any] | None, client_api: Any, send_request: Any, tmp_path: Path
) -> None:
    """Times beyond every clock, text that is none, a check of nothing: 400, and what is remembered stays as it was and
    can still be written."""
    manager = manager_in(tmp_path)
    manager.start()

    class NoChecks:
        async def respond(self, _part: FullSyncPart) -> dict[str, Any]:
            return {}

    query = ClusterQuery("n1", SimpleNamespace())
    query.serve(FULLSYNC_STATUS, NoChecks())
    parts = SimpleNamespace(
        fullsync=SimpleNamespace(scheduler=manager), settings=SimpleNamespace(node=SimpleNamespace(name="n1")),
        query=query, fullsync_status=SimpleNamespace(checks=lambda *_: {"peers": []}),
        membership=SimpleNamespace(live_nodes=lambda: {"n1"}), time=SystemTime(),
    )  # fmt: skip
    FullSyncAdmin(parts, client_api.app)  # type: ignore[arg-type]

    async def whole() -> Any:
        if body is None:
            answer = await send_request(client_api.app, "GET", f"/admin/fullsync{path}", b"")
        else:
            answer = await send_request(client_api.app, "POST", f"/admin/fullsync/{path}", json.dumps(body).encode())
        await manager.suspend("west", "ann", "")
        await manager.resume("west")
        await manager.stop()
        return answer

    assert (await whole()).status == 400
    again = History(tmp_path, 0)
    again.load()
    assert again.peer("west") == PeerHistory(manager.peers["west"].history.schedule_state, queue="to-west")
    assert again.peer("west").schedule_state.learned is None
