"""The admin listener's dynamic options: listed, set, unset, refused."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.config.dynamic_options import OPTIONS
from isthmus.config.settings import NodeSettings, ReplicationSettings, Settings
from isthmus.node.admin_api import options as options_room
from isthmus.node.admin_api.application import AdminApi
from isthmus.node.services.cluster_query import ClusterQuery
from isthmus.node.services.live_options import EffectiveOptions
from isthmus.node.services.settings_query import SETTINGS, SettingsResponder
from isthmus.repl.controller.dynamic_options import OptionSettings, read_options
from isthmus.repl.model.record import Incarnation, Member, PartitionRecord, PartitionStatus
from tests.support.memory_metastore import MemoryEnsemble, MemoryMetastore
from tests.support.node_status import FakeNodeStatus
from tests.support.open_access import EVERYBODY
from tests.support.query_links import QueryLinks

pytestmark = pytest.mark.virtual_time

MIN_ISR = "replication.min.isr"
LAG = "replication.max.time.lag.millis"


class MemoryController:
    """A controller on a metastore in memory; when woken, it writes options into its records, unless `lame` is set."""

    def __init__(self, metastore: MemoryMetastore) -> None:
        self.metastore = metastore
        self.options = OptionSettings()
        self.lame = False
        self.records = {
            0: a_record(0, "default", ("n1", "n2", "n3")),
            1: a_record(1, "notes", ("n1", "n2")),
        }
        self._tasks: set[asyncio.Task[None]] = set()

    def wake(self) -> None:
        """Read, and write down what is set."""
        self._tasks.add(asyncio.get_running_loop().create_task(self._look()))

    async def _look(self) -> None:
        self.options = await read_options(self.metastore)
        if not self.lame:
            self.records = {
                p: replace(r, min_isr=self.options.min_isr(r.bucket_type, len(r.replicas)))
                for p, r in self.records.items()
            }


def a_record(partition: int, bucket_type: str, replicas: tuple[str, ...]) -> PartitionRecord:
    """A partition led by n1, with two replicas in sync."""
    isr = frozenset(Member(node, 1) for node in replicas[:2])
    online, leader = PartitionStatus.ONLINE, Incarnation("n1", 7)
    return PartitionRecord(
        partition, bucket_type, 0, 1, replicas, 3, online, leader, isr=isr, min_isr=len(replicas) - 1
    )


class FollowingOptions(EffectiveOptions):
    """The options of a node that follows a controller."""

    def __init__(self, settings: Settings, controller: MemoryController) -> None:
        super().__init__(settings)
        self._controller = controller

    @property
    def chosen(self) -> OptionSettings:
        """See EffectiveOptions."""
        return self._controller.options


def nodes_of(controller: MemoryController, own: EffectiveOptions) -> ClusterQuery:
    """The queries of n1, whose options are `own`; the file of n2 has a time lag; n3 does not answer; n4 is down."""
    links = QueryLinks()
    file = Settings(
        NodeSettings("n2", "east", Path("data")),
        replication=ReplicationSettings(max_time_lag_ms=7_000),
        origins={"replication.max_time_lag": "n2.toml:7"},
    )
    properties = SimpleNamespace(cache=SimpleNamespace(settings=SimpleNamespace(version=None)))
    for node, options in (("n1", own), ("n2", FollowingOptions(file, controller)), ("n3", own)):
        links.add(node).serve(SETTINGS, SettingsResponder(options, properties))  # type: ignore[arg-type]
    links.cut.add("n3")
    return links.nodes["n1"]


async def answers_to(*requests: tuple[str, str, Any], lame: bool = False) -> list[tuple[int, dict[str, Any]]]:
    """The answers of one node's admin API to some requests, one after the other."""

    metastore = MemoryMetastore(MemoryEnsemble())
    await metastore.start(lambda _state: None)
    controller = MemoryController(metastore)
    controller.lame = lame
    options = FollowingOptions(Settings(NodeSettings("n1", "east", Path("data"))), controller)
    services = SimpleNamespace(
        controller=controller,
        options=options,
        query=nodes_of(controller, options),
        membership=SimpleNamespace(live_nodes=lambda: {"n1", "n2", "n3"}, known_nodes=lambda: {"n1", "n2", "n3", "n4"}),
        time=SimpleNamespace(wall_ms=lambda: 1_700_000_000_000),
    )
    admin = AdminApi(services, FakeNodeStatus(), EVERYBODY)  # type: ignore[arg-type]
    found = [await answer(admin, *each) for each in requests]
    await asyncio.gather(*controller._tasks)
    await metastore.stop()
    return found


async def answer(admin: AdminApi, method: str, path: str, body: Any) -> tuple[int, dict[str, Any]]:
    """One request; its status and JSON."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"" if body is None else json.dumps(body).encode(), "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    path, _, query = path.partition("?")
    await admin(
        {"method": method, "raw_path": path.encode(), "headers": [], "query_string": query.encode()}, receive, send
    )
    return sent[0]["status"], json.loads(b"".join(message.get("body", b"") for message in sent[1:]))


def facts(row: dict[str, Any]) -> tuple[Any, ...]:
    """The fields of a row about its value."""
    return tuple(row[key] for key in ("bucket_type", "set", "effective", "origin", "by"))


async def test_every_option_is_listed_with_what_is_in_force() -> None:
    """Each option has a row for the cluster; min-ISR has one for each bucket type, too; nothing is set at first."""
    ((status, answered),) = await answers_to(("GET", "/admin/options", None))
    rows = answered["options"]
    assert status == 200
    assert [row["option"] for row in rows if row["bucket_type"] is None] == list(OPTIONS)
    assert [facts(row) for row in rows if row["option"] == MIN_ISR] == [
        (None, None, "1 to 2", "default", None),
        ("default", None, 2, "default", None),
        ("notes", None, 1, "default", None),
    ]
    assert all(row["set"] is None and row["meaning"] and row["range"] for row in rows)


async def test_an_option_is_set_and_unset_with_who_and_when() -> None:
    """The answer has the row with the effective value and the previous value."""
    path = f"/admin/options/{LAG}"
    (_, done), (_, again), (_, undone), (_, once_more) = await answers_to(
        ("POST", f"{path}/set", {"value": "2s", "by": "ann@desk"}),
        ("POST", f"{path}/set", {"value": 4_000, "by": "bob", "bucket_type": "notes"}),
        ("POST", f"{path}/unset", {"by": "ann@desk"}),
        ("POST", f"{path}/unset", {"by": "ann@desk"}),
    )
    assert (done["outcome"], done["before"], done["warnings"]) == ("set", None, [])
    assert [facts(row) for row in done["options"]] == [(None, 2_000, 2_000, "cluster", "ann@desk")]
    assert done["options"][0]["at_ms"] == 1_700_000_000_000
    assert [facts(row) for row in again["options"]] == [("notes", 4_000, 4_000, "bucket type", "bob")]
    assert (undone["outcome"], undone["before"]) == ("unset", 2_000)
    assert [facts(row) for row in undone["options"]] == [
        (None, None, 3_000, "default", None),
        ("notes", 4_000, 4_000, "bucket type", "bob"),
    ]
    assert once_more["outcome"] == "was not set"


async def test_min_isr_is_clamped_and_the_consequences_are_noted() -> None:
    """The row has the set and the effective value, with notes on clamping and on partitions that then refuse writes."""
    path = f"/admin/options/{MIN_ISR}"
    (_, high), (_, low), (_, seen) = await answers_to(
        ("POST", f"{path}/set", {"value": 9}),
        ("POST", f"{path}/set", {"value": "-1", "bucket_type": "notes"}),
        ("GET", path, None),
    )
    assert [facts(row)[:4] for row in high["options"]] == [
        (None, 9, "2 to 3", "cluster"),
        ("default", None, 3, "cluster"),
        ("notes", None, 2, "cluster"),
    ]
    assert high["warnings"] == [
        "9 is clamped to 2 where there are 2 replicas",
        "9 is clamped to 3 where there are 3 replicas",
        "too few replicas are in sync for it: writes are refused in partitions 0",
    ]
    assert low["warnings"] == [
        "-1 is clamped to 1 where there are 2 replicas",
        "1 means that an acknowledged write may be on one disk alone",
    ]
    assert [facts(row)[:4] for row in seen["options"]] == [
        (None, 9, 3, "cluster"),
        ("default", None, 3, "cluster"),
        ("notes", -1, 1, "bucket type"),
    ]


async def test_a_dry_run_changes_nothing() -> None:
    """It shows the value that would be in effect."""
    (_, said), (_, listed) = await answers_to(
        ("POST", f"/admin/options/{MIN_ISR}/set", {"value": 3, "dry_run": True}),
        ("GET", f"/admin/options/{MIN_ISR}?bucket_type=default", None),
    )
    assert said["outcome"] == "would be set"
    assert facts(said["options"][0])[:4] == (None, 3, "2 to 3", "cluster")
    assert said["options"][1]["waiting"] == [0]
    assert [facts(row)[:4] for row in listed["options"]] == [("default", None, 2, "default")]


async def test_an_option_not_in_force_in_time_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer comes although no controller is active, and names the partitions that wait."""
    monkeypatch.setattr(options_room, "IN_FORCE_S", 0.1)
    ((_, done),) = await answers_to(("POST", f"/admin/options/{MIN_ISR}/set", {"value": 3}), lame=True)
    assert done["options"][0]["waiting"] == [0, 1]


@pytest.mark.parametrize(
    ("path", "body", "status", "reason", "says"),
    [
        ("replication.min.irs/set", {"value": 1}, 404, "unknown-option", 'did you mean "replication.min.isr"?'),
        (f"{LAG}/set", {"value": 99}, 400, "bad-option", "99 is out of range; allowed is 100ms to 1h"),
        (f"{LAG}/set", {}, 400, "bad-option", "not a duration; allowed is 100ms to 1h"),
        (f"{LAG}/set", {"value": 200, "typ": "x"}, 400, "bad-json", "'typ'"),
        (f"{LAG}/set", {"value": 200, "bucket_type": "note"}, 404, "unknown-bucket-type", 'did you mean "notes"?'),
        (f"{LAG}/set", {"value": 200, "dry_run": "yes"}, 400, "bad-json", "true or false"),
        (f"{LAG}/set", {"value": 200, "expected": [1]}, 400, "bad-json", "expected must be what the option is set to"),
        (
            "election.ask.millis/set",
            {"value": 9, "bucket_type": "notes"},
            400,
            "bad-option",
            "is set for the cluster only",
        ),
    ],
)
async def test_an_invalid_option_is_refused(path: str, body: Any, status: int, reason: str, says: str) -> None:
    """The message says which values are valid."""
    ((got, answered),) = await answers_to(("POST", f"/admin/options/{path}", body))
    assert (got, answered["reason"]) == (status, reason)
    assert says in answered["error"]


async def test_a_change_of_what_another_operator_changed_is_refused() -> None:
    """With the expected value the change is made, and its reason is stored. With another one nothing is changed, and
    the message has the current value and its operator; a dry run is refused in the same way. Null expects that nothing
    is set."""
    path = f"/admin/options/{LAG}"
    first, late, dry, again, gone, unset = await answers_to(
        ("POST", f"{path}/set", {"value": 2_000, "by": "ann", "expected": None, "reason": "slow disks"}),
        ("POST", f"{path}/set", {"value": 5_000, "by": "bob", "expected": None}),
        ("POST", f"{path}/unset", {"by": "bob", "expected": 4_000, "dry_run": True}),
        ("POST", f"{path}/set", {"value": "3s", "by": "bob", "expected": 2_000}),
        ("POST", f"{path}/unset", {"by": "ann", "expected": 2_000}),
        ("POST", f"{path}/unset", {"by": "ann", "expected": 3_000}),
    )
    assert (first[0], first[1]["options"][0]["reason"]) == (200, "slow disks")
    for status, answered in (late, dry):
        assert (status, answered["reason"]) == (409, "changed-meanwhile")
    assert late[1]["error"] == (
        f"{LAG} was changed meanwhile: it was not set, it is set to 2000 now, by ann; nothing was done"
    )
    assert (again[0], again[1]["options"][0]["effective"], again[1]["options"][0]["reason"]) == (200, 3_000, "")
    assert (gone[0], gone[1]["reason"]) == (409, "changed-meanwhile")
    assert (unset[0], unset[1]["outcome"]) == (200, "unset")


async def test_nodes_with_other_values_and_silent_ones_are_named() -> None:
    """n2 has the value of its file, until one is set for all; a dry run shows its future value. n3 does not answer, and
    n4 is down."""
    path = f"/admin/options/{LAG}"
    (_, before), (_, dry), (_, done), (_, undo) = await answers_to(
        ("GET", path, None),
        ("POST", f"{path}/set", {"value": 2_000, "dry_run": True}),
        ("POST", f"{path}/set", {"value": 2_000}),
        ("POST", f"{path}/unset", {"dry_run": True}),
    )
    here = {"n2": {"effective": 7_000, "origin": "file"}}
    assert [answer["options"][0]["differs"] for answer in (before, dry, done, undo)] == [here, {}, {}, here]
    for answer in (before, dry, done, undo):
        assert answer["unknown"] == {"n3": "not-ready: timed out", "n4": "not alive"}
        assert answer["behind"] == []


async def test_unsetting_what_is_not_set_says_so_in_a_dry_run_too() -> None:
    """There is nothing to confirm then."""
    ((_, said),) = await answers_to(("POST", f"/admin/options/{LAG}/unset", {"dry_run": True}))
    assert said["outcome"] == "was not set"
