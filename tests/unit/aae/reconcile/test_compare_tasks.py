"""The number of looks of a task and its verdicts, with rows made by the test."""

from __future__ import annotations

from typing import Any, Final

import pytest

from isthmus.aae.reconcile import compare_tasks
from isthmus.aae.reconcile.client import QueuePosition
from isthmus.aae.reconcile.compare_range import RangeRows, SideSpec
from isthmus.aae.reconcile.compare_tasks import FURTHER_LOOKS_MAX, Job
from isthmus.aae.reconcile.findings import encode_candidates
from isthmus.aae.reconcile.verdicts import CandidateKey, ObservedKey
from isthmus.node.cli.reconcile import AdminQueue
from isthmus.repl.model.errors import BadInput, PeerFault
from isthmus.repl.model.keys import key_hash, segment_of
from isthmus.repl.model.vclock import actor_of, encode_clock

CLOCK: Final = encode_clock(((actor_of(b"A" * 16, 1), 1, 1),))
ROW: Final = ObservedKey(CLOCK, 1, 5, tombstone=False)
SIDES: Final = SideSpec(("http://left",), "default"), SideSpec(("http://right",), "default")
JOB: Final = Job(*SIDES, "default", b"", 0, 0, "", rest_s=0.25)
KEYS: Final = [b"k%d" % n for n in range(6)]


class Rows:
    """Both clusters: the left one has all keys, the right one at each look those that have arrived."""

    def __init__(self, *arrived: int) -> None:
        self.arrived = list(arrived)
        self.looks = 0
        self.rests: list[float] = []

    def read(self, side: SideSpec, _runs: Any, *, committed: bool = False, bodies: bool = False) -> RangeRows:
        """See `looks.read_runs`."""
        assert committed
        keys = KEYS
        if side is SIDES[1]:
            if self.looks >= len(self.arrived):
                raise PeerFault("gone")
            keys = KEYS[: self.arrived[self.looks]]
            self.looks += 1
        return RangeRows({(b"b", key): ROW for key in keys}, [], 10)


def looked(monkeypatch: pytest.MonkeyPatch, rows: Rows) -> dict[str, Any]:
    """The row of a second look at KEYS, all of which were missing on the right at the first look."""
    monkeypatch.setattr(compare_tasks, "read_runs", rows.read)
    monkeypatch.setattr(compare_tasks, "sleep", rows.rests.append)
    payload = encode_candidates([CandidateKey(b"b", key, ROW, None) for key in KEYS], [], 1)
    found = compare_tasks._second(JOB, 0, payload)
    assert found["transient"] + found["diverged"] + found["unreachable"] == len(KEYS) == len(found["findings"])
    assert len({row["key"] for row in found["findings"]}) == len(KEYS)
    return found


def test_slowly_arriving_changes_are_not_reported_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as each look finds that a change arrived, the remaining keys are looked at again after a pause."""
    rows = Rows(2, 4, 6)
    found = looked(monkeypatch, rows)
    assert (found["transient"], found["diverged"], found["bytes"]) == (6, 0, 60)
    assert rows.rests == [0.25, 0.25]


def test_a_loss_is_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """If nothing arrived, there is one second look; if something arrived, looks continue until one finds nothing
    new."""
    rows = Rows(0)
    assert looked(monkeypatch, rows)["diverged"] == 6
    assert (rows.looks, rows.rests) == (1, [])
    rows = Rows(3, 3)
    found = looked(monkeypatch, rows)
    assert (found["transient"], found["diverged"], rows.looks) == (3, 3, 2)


def test_looks_are_bounded_and_a_side_that_goes_is_not_called_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of looks is bounded. Keys that have still not arrived, or could not be read in the last look, are
    `unreachable`, and the chunk stays open."""
    rows = Rows(1, 2, 3, 4, 5, 6, 6)
    found = looked(monkeypatch, rows)
    assert rows.looks == FURTHER_LOOKS_MAX + 1
    assert (found["transient"], found["diverged"], found["unreachable"]) == (5, 0, 1)
    assert "still-arriving" in found["error"]
    found = looked(monkeypatch, Rows(4))
    assert (found["transient"], found["diverged"], found["unreachable"]) == (4, 0, 2)
    assert "gone" in found["error"]


HELD: Final = QueuePosition("to-right", "right", "any", "serving is suspended by ann: a look", {0: 4, 1: None})


def waiting(monkeypatch: pytest.MonkeyPatch, *queues: QueuePosition, places: Any = None) -> dict[str, Any]:
    """The row of a second look at KEYS, which the right side lacks: key n changed at offset n of partition 0."""
    rows = Rows(0)
    monkeypatch.setattr(compare_tasks, "read_runs", rows.read)
    known = {(b"b", key): (0, number) for number, key in enumerate(KEYS)}
    monkeypatch.setattr(compare_tasks, "places_of", places or (lambda _side, _runs: known))
    payload = encode_candidates([CandidateKey(b"b", key, ROW, None) for key in KEYS], [], 1)
    return compare_tasks._second(JOB._replace(to_right=queues), 0, payload)


def verdicts_of(found: dict[str, Any]) -> list[str]:
    """The verdicts of KEYS, in order."""
    by_key = {row["key"]: row["verdict"] for row in found["findings"]}
    return [by_key[key] for key in KEYS]


def test_keys_above_the_cursor_of_a_queue_wait_and_are_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys whose change the other cluster has not acknowledged are `waiting`, those below its cursor are `diverged`;
    the chunk stays open, and names the queue with what holds it."""
    found = waiting(monkeypatch, HELD)
    assert verdicts_of(found) == ["diverged"] * 4 + ["waiting"] * 2
    assert (found["diverged"], found["transient"], found["unreachable"], found["candidates"]) == (4, 0, 0, 6)
    assert found["error"] == "waiting: 2 in queue to-right to right: serving is suspended by ann: a look"


def test_without_a_queue_that_offers_a_key_it_cannot_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """No queue, one whose filter leaves the bucket out, and one that all have passed: the keys are lost."""
    for queues in ((), (HELD._replace(filter="bucketname:other"),), (HELD._replace(cursors={0: 6}),)):
        found = waiting(monkeypatch, *queues)
        assert verdicts_of(found) == ["diverged"] * 6
        assert found["error"] == ""


def test_a_position_that_is_not_known_claims_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the cursor of a partition its keys wait; where the offsets of the keys cannot be read they are
    unreachable."""
    found = waiting(monkeypatch, HELD._replace(cursors={0: None}, reason=""))
    assert verdicts_of(found) == ["waiting"] * 6
    assert "how far it is acknowledged is not known" in found["error"]

    def gone(_side: SideSpec, _runs: Any) -> Any:
        raise PeerFault("gone")

    found = waiting(monkeypatch, HELD, places=gone)
    assert verdicts_of(found) == ["unreachable"] * 6
    assert "gone" in found["error"]


def test_a_reaped_key_is_a_delete_that_the_other_side_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in full-sync: a key that is reaped in one cluster and older in the other one is behind there, and is not
    missing where it was deleted. If the reaped keys could not be read nothing is claimed, and the chunk stays open."""
    gone = ObservedKey(CLOCK, 0, 0, tombstone=True)
    name = (b"b", KEYS[0])

    def second(left: RangeRows, right: RangeRows) -> tuple[str, str | None, str | None, str]:
        sides = dict(zip(SIDES, (left, right), strict=True))
        monkeypatch.setattr(compare_tasks, "read_runs", lambda side, *_, **__: sides[side])
        found = compare_tasks._second(JOB, 0, encode_candidates([CandidateKey(*name, None, ROW)], [], 1))
        (row,) = found["findings"]
        return row["verdict"], row["difference"], row["side"], found["error"].partition(":")[0]

    segment = segment_of(key_hash(*name))
    there = RangeRows({name: ROW}, [], 1)
    assert second(RangeRows({name: gone}, [], 1), there) == ("diverged", "behind", "sink", "")
    assert second(RangeRows({}, [], 1), there) == ("diverged", "missing", "source", "")
    unread = RangeRows({}, [], 1, frozenset({segment}))
    assert second(unread, there) == ("unreachable", "missing", "source", "reaped-keys-unread")
    other = RangeRows({}, [], 1, frozenset({segment + 1}))
    assert second(other, there) == ("diverged", "missing", "source", "")
    assert second(unread, RangeRows({}, [], 1))[0] == "transient"


def test_names_travel_to_a_queue_as_they_are() -> None:
    """Percent-encoded, so that any bytes arrive; names of another bucket wait for the next request."""
    asked: list[tuple[str, dict[str, Any]]] = []

    class Admin:
        """Takes all."""

        def post(self, path: str, wish: dict[str, Any]) -> dict[str, Any]:
            asked.append((path, wish))
            return {"queued": len(wish["keys"])}

    queue = AdminQueue(Admin(), "to west", "me")  # type: ignore[arg-type]
    names = [(b"\xff/", b"a b"), (b"\xff/", b"\xc3%"), (b"c", b"k")]
    assert queue.push(b"default", names) == 2
    [(path, wish)] = asked
    assert path == "/admin/queues/to%20west/push"
    assert (wish["bucket"], wish["keys"], wish["encoding"]) == ("%FF%2F", ["a%20b", "%C3%25"], "percent")
    assert (wish["fold"], wish["bucket_type"], wish["by"]) == (True, "default", "me")


FREE = {"name": "free", "owner": None, "reason": "no sink cluster has fetched yet"}


def test_a_queue_knows_whose_it_is_and_what_it_lost(capsys: pytest.CaptureFixture[str]) -> None:
    """An admin listener of another cluster, a missing queue, one from which a third cluster fetches, and one from which
    none does are refused before a reference is queued; that a queue serves nothing is said. Only the queue's losses of
    the lowest priority count, from the given time on."""
    told: dict[str, dict[str, Any]] = {
        "/admin/cluster": {"cluster": "west", "cluster_uuid": "bb"},
        "/admin/queues": {"queues": [{"name": "same", "owner": {"cluster": "north", "uuid": "cc"}}, FREE]},
        "/admin/gaps?queue=same": {
            "at_ms": 77,
            "gaps": [
                {"priority": 3, "upto_ms": 60, "what": "discard", "node": "n", "count_at_most": 1},
                {"priority": 1, "upto_ms": 40, "what": "crashed", "node": "n", "count_at_most": 2},
                {"priority": 1, "upto_ms": 50, "what": "crashed", "node": "m", "count_at_most": 256},
            ],
        },
    }

    class Admin:
        """West's."""

        url = "http://west:8099"

        def get(self, path: str) -> dict[str, Any]:
            return told[path]

    queue = AdminQueue(Admin(), "same", "me")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="http://west:8099 is of cluster west, uuid bb; the plan is sent by cluster aa"):
        queue.check("aa", "bb")
    with pytest.raises(BadInput, match="queue same belongs to cluster north"):
        queue.check("bb", "aa")
    assert queue.check("bb", "cc") == 77
    with pytest.raises(BadInput, match="no queue to-x; it has same, free"):
        AdminQueue(Admin(), "to-x", "me").check("bb", "aa")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=r"no cluster fetches from queue free: no sink cluster has fetched yet\."):
        AdminQueue(Admin(), "free", "me").check("bb", "aa")  # type: ignore[arg-type]
    assert capsys.readouterr().err == ""
    told["/admin/queues"]["queues"][0]["reason"] = "serving suspended: night"
    assert queue.check("bb", "cc") == 77
    assert capsys.readouterr().err == "queue same: serving suspended: night\n"
    [lost] = queue.lost(50)
    assert lost.startswith("crashed at node m, at most 256 references")
