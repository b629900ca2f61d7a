"""explain never announces a full-sync that will not run, names origins, and tells what is not known."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.node.services import explain_key
from isthmus.node.services.explain_key import KeyExplainer, joined
from isthmus.node.services.remote_lookup import NOT_HERE, REAPED, with_other_sides
from isthmus.queues.riak_origin import RIAK_CLUSTER
from isthmus.repl.model.errors import NotLeader
from isthmus.repl.model.keys import Key


@pytest.mark.parametrize(
    ("compared", "promised"),
    [([], False), ([{"queues": ["rt"], "suspended": None}], True), ([{"queues": ["rt"], "suspended": "ann"}], False),
     ([{"queues": ["other"], "suspended": None}], False)],
)  # fmt: skip
def test_a_full_sync_is_promised_only_where_one_runs_that_compares_the_queue(compared: Any, promised: bool) -> None:
    """A key in a gap: the next step names a full-sync when one of any node compares for its queue and is not suspended,
    else what sends the key."""
    rows = [{"fullsync": "west", "at_ms": None, **row} for row in compared]
    queue = {"queue": "rt", "state": "gap", "next": "a full-sync finds it and sends it"}
    found = {"applied_ms": 1, "origin": None, "seen": [], "siblings": []}
    answer = {"leads": True, "partition": 1, "segment": 2, "leader": "e1", "object": found, "queues": [queue],
              "lower": [], "reap": None, "compared": rows, "dead_letters": []}  # fmt: skip
    step = joined({"e1": answer}, {})["next"]
    assert ("a full-sync finds it" in step) is promised
    assert promised or "isthmus queue push rt sends it" in step


@pytest.mark.parametrize(("origin", "name"), [(RIAK_CLUSTER.hex(), "riak"), ("ab" * 16, None), (None, None)])
def test_the_origin_of_the_newest_change_is_named(origin: str | None, name: str | None) -> None:
    """As far as this node knows the cluster; None also where the change cannot be read."""
    found = {"applied_ms": 1, "origin": origin, "seen": [], "siblings": []}
    answer = {"leads": True, "partition": 1, "segment": 2, "leader": "e1", "object": found, "queues": [],
              "lower": [], "reap": None, "compared": [], "dead_letters": []}  # fmt: skip
    assert joined({"e1": answer}, {RIAK_CLUSTER.hex(): "riak"})["object"]["origin_cluster"] == name


def test_a_key_that_was_deleted_and_reaped_is_not_called_missing() -> None:
    """This cluster remembers the delete: the other side, which still has the value, is behind, and the next step is
    this cluster's full-sync. Of an older reap, and of a node of an earlier version, nothing is known."""
    answer = {"leads": True, "partition": 1, "segment": 2, "leader": "e1", "object": None, "reaped_clock": "91",
              "queues": [], "lower": [], "reap": None, "compared": [], "dead_letters": []}  # fmt: skip
    found = joined({"e1": answer}, {})
    assert (found["reaped_clock"], found["next"]) == ("91", REAPED)
    behind = {"state": "behind", "url": "http://w1:1", "clock": "90", "reason": ""}
    assert with_other_sides(found, [behind])["next"] == REAPED
    assert with_other_sides(found, [{**behind, "state": "ahead"}])["next"].startswith("the other side is ahead")
    for forgotten in ({**answer, "reaped_clock": None}, {k: v for k, v in answer.items() if k != "reaped_clock"}):
        found = joined({"e1": forgotten}, {})
        assert (found["reaped_clock"], found["next"]) == (None, NOT_HERE)


class Followers:
    """The runtime of a leader, whose followers confirm it, refuse it, or do not answer."""

    def __init__(self, answer: str) -> None:
        self.partitions = {1: SimpleNamespace(replica=SimpleNamespace(ready=True))}
        self.store = SimpleNamespace(key_row=lambda *_: None, reaped_clocks=lambda _: {})
        self._answer = answer

    def committed(self, _partition: object) -> asyncio.Future[None]:
        """See Runtime."""
        confirmed = asyncio.get_running_loop().create_future()
        if self._answer == "confirmed":
            confirmed.set_result(None)
        elif self._answer == "refused":
            confirmed.set_exception(NotLeader("partition 1: not-leader", "e2"))
        return confirmed


@pytest.mark.parametrize(("answer", "leads"), [("confirmed", True), ("refused", False), ("silent", False)])
async def test_a_leader_that_is_cut_off_explains_nothing(
    answer: str, leads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another node may lead by now, with newer writes: without its followers' word a leader does not say what a key is,
    and the joined answer says that it is not known, and why."""
    monkeypatch.setattr(explain_key, "CONFIRMED_S", 0.05)
    nothing: Any = SimpleNamespace(
        partition_of=lambda *_: 1,
        leader=lambda _: "e1",
        comparisons_of=lambda _: [],
        dead_letters_of=lambda _: asyncio.sleep(0, []),
        explain=lambda *_: {"queues": [], "lower": []},
    )
    explainer = KeyExplainer(
        runtime=Followers(answer),  # type: ignore[arg-type]
        routes=nothing,
        acts=nothing,
        reaper=nothing,
        pool=None,  # type: ignore[arg-type]
        fullsync=nothing,
        sink=nothing,
    )
    found = await explainer.own(Key(b"default", b"bucket", b"key"))
    assert found["leads"] is leads
    shown = joined({"e1": found}, {})
    assert shown["known"] is leads
    assert leads or "node e1, the leader as far as is known, cannot confirm that it still leads" in shown["reason"]
