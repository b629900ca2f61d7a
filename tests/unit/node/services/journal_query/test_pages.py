"""Audit logs of several nodes, merged page by page."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.node.services import journal_query
from isthmus.node.services.journal_query import (
    AUDIT,
    AuditResponder,
    NodeAudit,
    ReadAudit,
    WantedActs,
    merged,
    searched_to,
)
from isthmus.repl.model.errors import CodecError, IsthmusError
from tests.support.journals import journal_in


def page(acts: list[tuple[int, int]], *, more: bool = False) -> NodeAudit:
    """A node's page of lines (id, at_ms)."""
    lines = [{"id": number, "at_ms": at_ms} for number, at_ms in acts]
    return NodeAudit(lines, more, 0, 0, acts[-1] if acts else None)


def all_pages(logs: dict[str, list[int]], limit: int, node_limit: int) -> list[tuple[str, int]]:
    """(node, id) of all acts, page by page; `logs` has the times of a node's lines, and a node returns at most
    `node_limit` at once."""
    found: list[tuple[str, int]] = []
    before: dict[str, int] | None = dict.fromkeys(logs, 1 << 40)
    while before is not None:
        answers: dict[str, NodeAudit | None] = {}
        for node, below in before.items():
            lines = [(number, at_ms) for number, at_ms in enumerate(logs[node], 1) if number < below][::-1]
            answers[node] = page(lines[:node_limit], more=len(lines) > node_limit)
        for node, answer in answers.items():
            assert answer is not None
            for act in answer.acts:
                act["node"] = node
        acts, before = merged(answers, limit)
        assert len(acts) <= limit
        found += [(act["node"], act["id"]) for act in acts]
    return found


def test_acts_of_all_nodes_come_newest_first() -> None:
    """A node without an answer has no acts, and does not end the pages of the others."""
    acts, following = merged({"n1": page([(2, 30), (1, 10)]), "n2": page([(7, 20)]), "n3": None}, 10)
    assert [act["at_ms"] for act in acts] == [30, 20, 10]
    assert following is None


def test_a_page_goes_on_where_the_one_before_ended() -> None:
    """Each node continues below the last id shown, or at its first line that was not shown."""
    answers = {"n1": page([(2, 30), (1, 10)]), "n2": page([(7, 20)]), "n3": page([(5, 1)])}
    acts, following = merged(answers, 2)
    assert ([act["id"] for act in acts], following) == ([2, 7], {"n1": 2, "n3": 6})


def test_a_node_that_found_nothing_yet_holds_back_older_acts_of_others() -> None:
    """n1 has read back to id 8 at time 25: its earlier lines may precede the act of n2 at time 20. The page ends there,
    and both continue."""
    answers = {"n1": NodeAudit([], True, 0, 0, (8, 25)), "n2": page([(7, 20)])}
    assert merged(answers, 10) == ([], {"n1": 8, "n2": 8})
    assert searched_to(answers) == 25
    assert searched_to({"n1": page([(1, 5)]), "n2": None}) is None


ACT = {
    "id": 1,
    "at_ms": 50,
    "who": {"by": "Ann@desk", "role": "operate", "token": "0123456789ab", "certificate": None},
    "from": "10.0.0.7:4711",
    "what": {
        "act": "set properties of bucket notes/a b",
        "route": "POST /admin/buckets/{type}/{bucket}/properties/set",
        "path": "/admin/buckets/notes/a%20b/properties/set",
        "request": {"props": {"allow_mult": False}},
    },
    "outcome": "done",
}


@pytest.mark.parametrize(
    ("wanted", "included"),
    [
        (WantedActs(), True),
        (WantedActs(act="SET prop"), True),
        (WantedActs(act="{bucket}/properties/set"), True),
        (WantedActs(act="unset"), False),
        (WantedActs(who="ann"), True),
        (WantedActs(who="0123456789ab"), True),
        (WantedActs(who="10.0.0.7"), True),
        (WantedActs(who="bob"), False),
        (WantedActs(who="null"), False),
        (WantedActs(object="notes/a b"), True),
        (WantedActs(object="a%20b"), True),
        (WantedActs(object="allow_mult"), True),
        (WantedActs(object="ann"), False),
        (WantedActs(outcome="done"), True),
        (WantedActs(outcome="refused"), False),
        (WantedActs(until_ms=50), True),
        (WantedActs(until_ms=49), False),
        (WantedActs(act="set", who="ann", object="allow_mult", outcome="done"), True),
        (WantedActs(act="set", who="bob", object="allow_mult", outcome="done"), False),
    ],
)
def test_acts_are_wanted_by_what_who_object_outcome_and_time(wanted: WantedActs, *, included: bool) -> None:
    """Each given part must match, case-insensitively; null matches no text."""
    assert wanted.include(ACT) is included


def test_a_line_that_lacks_parts_is_no_fault() -> None:
    """A line of another version, or one that was edited."""
    for line in ({"id": 1, "at_ms": 1}, {"id": 1, "at_ms": 1, "who": None, "what": []}):
        assert WantedActs().include(line)
        assert not WantedActs(who="ann").include(line)
        assert not WantedActs(object="ann").include(line)


def test_acts_of_a_node_that_does_not_filter_are_filtered_here() -> None:
    """A node of an earlier version sends all of its lines, without its reading position."""
    answer = NodeAudit([{**ACT, "id": 9}, {**ACT, "id": 8, "who": {}}], True, 0, 0).only(WantedActs(who="ann"))
    assert ([act["id"] for act in answer.acts], answer.read_to) == ([9], (8, 50))
    assert merged({"n1": answer}, 10)[1] == {"n1": 8}


@pytest.mark.parametrize("seed", range(30))
def test_every_act_is_shown_once_and_in_its_nodes_order(seed: int) -> None:
    """This holds for any page sizes, and if clocks are set back; with monotonic clocks the whole is in the order of
    times."""
    rng = random.Random(seed)
    steady = seed % 2 == 0
    logs = {
        f"n{index}": (sorted if steady else list)([rng.randrange(100) for _ in range(rng.randrange(40))])
        for index in range(3)
    }
    node_limit = rng.randrange(1, 20)
    found = all_pages(logs, rng.randrange(1, 20), node_limit)
    assert sorted(found) == sorted(
        (node, number) for node, times in logs.items() for number in range(1, len(times) + 1)
    )
    for node in logs:
        numbers = [number for of, number in found if of == node]
        assert numbers == sorted(numbers, reverse=True)
    if steady:
        times = [logs[node][number - 1] for node, number in found]
        assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("act", [{}, {"id": "1", "at_ms": 1}, {"id": 1}, {"id": 1, "at_ms": None}])
def test_an_answer_without_ids_or_times_is_refused(act: dict[str, Any]) -> None:
    """A node of a later version may be at fault; the page names it as unknown."""
    body = AUDIT.answers.encode(NodeAudit([act], False, 0, 0))
    with pytest.raises(CodecError):
        AUDIT.answers.decode(body)


async def test_a_log_that_cannot_be_read_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Covered are a file in place of the directory, and a disk that hangs."""
    (tmp_path / "audit").write_text("no directory")
    log = journal_in(tmp_path)
    responder = AuditResponder("n1", log, SimpleNamespace(wall_ms=lambda: 5_000))
    with pytest.raises(IsthmusError, match="cannot be read"):
        await responder.respond(ReadAudit(0, 10))
    monkeypatch.setattr(journal_query, "READ_S", 0)
    with pytest.raises(IsthmusError, match="within 0 s"):
        await responder.respond(ReadAudit(0, 10))
    await log.stop()
