"""The findings of the cluster as a metric: who reports them, what is counted, and what is when nobody can judge."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from isthmus.node.services.finding_metrics import REPORTERS, REST, SERIES_MAX, WAIT_S, FindingMetrics
from isthmus.repl.model.errors import NotReady

pytestmark = pytest.mark.virtual_time

NODES = ["e1", "e2", "e3", "e4"]


def finding(code: str, severity: str, subject: str) -> dict[str, str]:
    """A row of /admin/findings."""
    return {"code": code, "severity": severity, "subject": subject, "sentence": "it is so", "remedy": "do this"}


class Judge:
    """Makes the document; `rounds` counts."""

    def __init__(self, *findings: dict[str, str]) -> None:
        self.findings = list(findings)
        self.rounds = 0
        self.takes_s = 0.0
        self.fails: Exception | None = None

    async def document(self) -> dict[str, Any]:
        self.rounds += 1
        await asyncio.sleep(self.takes_s)
        if self.fails is not None:
            raise self.fails
        return {"state": "warning", "findings": self.findings}


async def shown(judge: Judge, node: str = "e1", registered: list[str] = NODES) -> dict[tuple[str, str, str], float]:
    """(code, severity, subject) -> the value that a scrape of a node shows."""
    metrics = FindingMetrics(node, judge.document, lambda: registered)
    await metrics.measure()
    return {
        (one["code"], one["severity"], one["subject"]): value
        for name, one, value in metrics.samples()
        if name == "isthmus_findings"
    }


async def test_findings_are_counted_by_code_severity_and_subject() -> None:
    """Two bucket types of one queue count as two; without findings there is no sample."""
    late, gap = finding("lag", "warning", "queue q"), finding("gaps", "critical", "queue q")
    assert await shown(Judge(gap, late, late)) == {
        ("gaps", "critical", "queue q"): 1,
        ("lag", "warning", "queue q"): 2,
    }
    assert await shown(Judge()) == {}


async def test_the_first_nodes_report_for_the_cluster() -> None:
    """The others ask nobody and show nothing; one that is not registered, so that nobody counts on it, shows what it
    sees. When the first one is gone, the next one reports."""
    judge = Judge(finding("lag", "warning", "queue q"))
    for node in NODES:
        reports = node in NODES[:REPORTERS]
        judge.rounds = 0
        assert bool(await shown(judge, node)) == bool(judge.rounds) == reports, node
    assert await shown(judge, "e9")
    assert await shown(judge, "e1", [])
    assert await shown(judge, "e3", NODES[1:])


async def test_a_node_that_stops_reporting_shows_its_last_judgement_no_more() -> None:
    """Its numbers are those of now, or none."""
    judge, registered = Judge(finding("lag", "warning", "queue q")), ["e2", "e3", "e4"]
    metrics = FindingMetrics("e3", judge.document, lambda: registered)
    await metrics.measure()
    reporter, shown_before = metrics.samples()
    assert reporter == ("isthmus_findings_reporter", {}, 1.0)
    assert shown_before[0] == "isthmus_findings"
    registered.append("e1")
    await metrics.measure()
    assert list(metrics.samples()) == [("isthmus_findings_reporter", {}, 0.0)]


async def test_a_reporter_without_findings_is_told_from_a_node_that_does_not_report() -> None:
    """Neither has samples of findings; the gauge is 1 at the reporter alone, also where it could not judge."""
    judge = Judge()
    judge.fails = NotReady("the node stops")
    for node in [*NODES, "e9"]:
        metrics = FindingMetrics(node, judge.document, lambda: NODES)
        await metrics.measure()
        values = [value for name, _, value in metrics.samples() if name == "isthmus_findings_reporter"]
        assert values == [float(node in (*NODES[:REPORTERS], "e9"))], node


async def test_what_cannot_be_judged_is_a_finding() -> None:
    """Never nothing, which is what a healthy cluster shows: neither when the round takes too long, nor when it
    fails."""
    unknown = {("not-known", "unknown", "cluster"): 1}
    judge = Judge()
    judge.takes_s = WAIT_S + 1
    assert await shown(judge) == unknown
    judge.takes_s = 0
    for error, events in ((NotReady("the node stops"), []), (OSError("a defect"), ["metrics.findings_unread"])):
        judge.fails = error
        with capture_logs() as logs:
            assert await shown(judge) == unknown
        assert [event["event"] for event in logs] == events


async def test_the_number_of_series_is_limited_and_no_finding_is_left_out() -> None:
    """Beyond the limit they are counted together, by code and severity."""
    many = [finding("lag", "warning", f"queue {number}") for number in range(SERIES_MAX + 5)]
    found = await shown(Judge(*many, many[0]))
    assert len(found) == SERIES_MAX + 1
    assert found["lag", "warning", REST] == 5
    assert found["lag", "warning", "queue 0"] == 2
    assert sum(found.values()) == len(many) + 1
