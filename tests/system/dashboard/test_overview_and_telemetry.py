"""Overview and Telemetry in a browser: links, alarms and charts of real clusters, as they change."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from isthmus.node.services.finding_codes import Code
from isthmus.node.services.findings import Fact, ProbeState, by_severity
from tests.support.dashboard_browser import FITS, BrowserPage
from tests.system.fullsync.clusters import Clusters, eventually, http_request

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(180)]

OpenPage = Callable[..., BrowserPage]

CHARTS = {
    "Replicated entries", "Replicate duration, mean", "Replicate duration, longest of the last 30 to 60 s",
    "Replicate failures", "Apply duration, mean", "Apply duration, longest of the last 30 to 60 s",
    "Worst partition: members in sync and min-ISR", "Log entries of a replica, mean", "Log entries of a replica, most",
    "Unapplied entries of a replica, mean", "Unapplied entries of a replica, most",
    "Size on disk, of all bucket types", "Nodes that answered, whose numbers are added up",
    "Lag of other clusters: age of the oldest change they have not acknowledged, by queue",
    "Lag of this cluster: 99th percentile of what was fetched in the last minute, by link",
    "Requests, by kind", "Duration of requests of one object, median",
    "Duration of requests of one object, 99th percentile",
}  # fmt: skip


def picture(tab: BrowserPage) -> Locator:
    """The picture of clusters and links; its name has all that it shows."""
    return tab.region("Clusters and links").locator("svg.map")


def test_links_are_a_picture_with_lag_and_proof(pair: Clusters, open_page: OpenPage) -> None:
    """Both directions are arrows with their state; a comparison that finds both equal shows as of when that is
    proven, in the picture and in the table."""
    pair.put("east", "b", "k", "v")
    eventually(lambda: pair.read("west", "b", "k"), "the write has crossed")
    eventually(lambda: pair.check(node="east-1")["verdict"] == "in-sync", "compared")
    tab = open_page(pair.nodes["east-1"]["admin"], "overview")
    drawn = picture(tab)
    expect(drawn).to_have_attribute("aria-label", re.compile(r"Cluster east and 1 other.* west: to it, in time"))
    expect(drawn).to_have_attribute("aria-label", re.compile("from it, running, to-east: 4 of 4 links running"))
    expect(drawn).to_contain_text("to-west: 0 s behind, 0 objects")
    expect(drawn).to_contain_text("proven equal as of 20")
    expect(tab.region("Clusters and links").get_by_role("row").nth(1).locator("time")).to_have_count(2)
    expect(tab.region("Alarms")).to_contain_text("no problems")
    facts = tab.region("This cluster")
    for text in ("4 of 4", "6 of 6", "18 of 18"):
        expect(facts).to_contain_text(text)


def test_alarms_are_the_list_of_the_node(pair: Clusters, open_page: OpenPage) -> None:
    """Alarms are the findings that `isthmus status` prints, in their order, with their severity, sentence and remedy; a
    finding ends by itself, and only a list without any says that there are no problems."""
    eventually(lambda: pair.check(node="east-1")["verdict"] == "in-sync", "compared")
    tab = open_page(pair.nodes["east-1"]["admin"], "overview")
    alarms = tab.region("Alarms")
    expect(alarms).to_contain_text("no problems")
    pair.admin("west-1", "/admin/bucket-types/lacking", {"partition_count": 1, "replication_factor": 1})
    path = f"{pair.nodes['west-1']['http']}/types/lacking/buckets/b/keys/k"
    eventually(lambda: http_request(path, "PUT", b"v", Content_Type="text/plain")[0] == 204, "the type takes writes")
    warning = alarms.get_by_role("listitem").filter(has_text="bucket type lacking of west is lacking here")
    expect(warning).to_contain_text("▲ Warning: ")
    expect(warning.locator("code")).to_have_text("isthmus bucket-type create lacking")
    expect(warning.get_by_role("link", name="Bucket types")).to_have_attribute("href", "#/bucket-types")
    expect(alarms).not_to_contain_text("no problems")
    served = [each["sentence"] for each in pair.admin("east-1", "/admin/findings")["findings"]]
    shown = alarms.get_by_role("listitem").all_inner_texts()
    assert all(sentence in line for sentence, line in zip(served, shown, strict=True)), (served, shown)
    pair.admin("east-1", "/admin/bucket-types/lacking", {"partition_count": 1, "replication_factor": 3})
    expect(warning).to_have_count(0)


@pytest.mark.parametrize(("width", "theme"), [(1400, "light"), (360, "dark")])
def test_many_alarms_are_whole_and_readable(pair: Clusters, open_page: OpenPage, width: int, theme: str) -> None:
    """A finding of each code is shown whole at the width of a telephone and of a desk, with nothing wider than the
    window; the command of a remedy ends where its sentence goes on."""
    node = "east-1-of-a-rack-with-a-long-name"
    facts = by_severity(
        Fact(
            ProbeState.CRITICAL if number % 5 == 0 else ProbeState.UNKNOWN if number % 5 == 1 else ProbeState.WARNING,
            f"node {node}: an exception ended push in repl/coordinator/write_batch.py:516 ({code})",
            code,
            f"node {node}",
        )
        for number, code in enumerate(Code)
    )
    answer = {"state": "critical", "findings": [fact.as_dict() for fact in facts]}
    tab = open_page(pair.nodes["east-1"]["admin"], None, width=width, theme=theme)
    tab.page.route("**/admin/findings", lambda route: route.fulfill(json=answer))
    tab.goto("overview")
    alarms = tab.region("Alarms").get_by_role("listitem")
    expect(alarms).to_have_count(len(facts))
    words = {ProbeState.CRITICAL: "Problem", ProbeState.WARNING: "Warning", ProbeState.UNKNOWN: "Unknown"}
    for fact, shown in zip(facts, alarms.all_inner_texts(), strict=True):
        assert f"{words[fact.state]}: {fact.sentence}" in shown, shown
        assert fact.remedy in shown, shown
    assert tab.page.evaluate(FITS)
    assert not [each for each in alarms.all() if each.evaluate("(item) => item.scrollWidth > item.clientWidth")]
    renewed = alarms.filter(has_text=Code.ACTOR_RENEWED)
    expect(renewed.locator("code")).to_have_text("isthmus fullsync run all --wait")
    expect(renewed.get_by_role("link")).to_have_attribute("href", "#/fullsync")
    assert not tab.violations()


def test_a_link_has_the_tone_of_its_finding_also_where_its_lag_is_not_known(
    pair: Clusters, open_page: OpenPage
) -> None:
    """A part that is known and late is critical, and shown with "at least"; without findings the link is unknown."""
    lag = json.loads(http_request(f"{pair.nodes['east-1']['admin']}/admin/lag")[1])
    lag["lag"][0] |= {"seconds": None, "at_least_s": 400.0, "objects": None}
    queue = lag["lag"][0]["queue"]
    late = Fact(ProbeState.CRITICAL, f"queue {queue}: at least 6.7 min behind", Code.LAG, f"queue {queue}")
    tab = open_page(pair.nodes["east-1"]["admin"], None)
    tab.page.route("**/admin/lag", lambda route: route.fulfill(json=lag))
    answer: dict[str, Any] = {"status": 200, "json": {"state": "critical", "findings": [late.as_dict()]}}
    tab.page.route("**/admin/findings", lambda route: route.fulfill(**answer))
    links = tab.region("Clusters and links")
    tab.allow("status of 503")
    for state, shape in (("late", "■"), ("unknown", "○")):
        tab.goto("audit")
        tab.goto("overview")
        expect(links).to_contain_text(f"{shape} {queue}: at least 6 min 40 s behind")
        expect(links.locator(f'svg[aria-label*="to it, {state}, {queue}: "]')).to_have_count(1)
        answer.update(status=503, json={"error": "busy"})


def test_a_proof_that_is_not_known_is_not_called_never(pair: Clusters, open_page: OpenPage) -> None:
    """While a node does not tell its checks, and where a proof's time is ahead of this node's clock, the proof is
    unknown, with the reason; "never" is said where all nodes told theirs."""
    path = f"{pair.nodes['east-1']['admin']}/admin/lag"
    answer = json.loads(http_request(path)[1])
    at_ms = answer["at_ms"]
    shown: dict[str, Any] = {}
    tab = open_page(pair.nodes["east-1"]["admin"], None)
    tab.page.route("**/admin/lag", lambda route: route.fulfill(json={**answer, "lag": [{**answer["lag"][0], **shown}]}))
    links = tab.region("Clusters and links")
    for silent, proven, said, drawn in (
        (["east-2"], None, "unknown: no answer from east-2", "last proof unknown"),
        ([], at_ms + 60_000, "unknown: its time is ahead of this node’s clock", "last proof unknown"),
        ([], None, "never", "never proven up to date"),
    ):
        shown.update(proofs_unknown_at=silent, proven_ms=proven, equal_ms=None, both_ways=True)
        tab.goto("audit")
        tab.goto("overview")
        expect(links.get_by_role("row").nth(1).locator("span.unknown")).to_have_text([said, said])
        expect(picture(tab)).to_contain_text(drawn)


def test_what_people_hold_back_is_named_beneath_the_alarms(pair: Clusters, open_page: OpenPage) -> None:
    """A sink that operators suspended is named with their reason and the command that ends it, as text."""
    tab = open_page(pair.nodes["east-1"]["admin"], "overview")
    alarms = tab.region("Alarms")
    east = [name for name in pair.nodes if name.startswith("east")]
    for node in east:
        pair.admin(node, "/admin/sink/suspend", {"reason": "<b>west</b> is rebuilt"})
    expect(alarms).to_contain_text("Set by operators: from west, to-east: 0 of 4 links running")
    expect(alarms).to_contain_text("isthmus sink resume")
    expect(alarms).to_contain_text("<b>west</b> is rebuilt")
    expect(picture(tab)).to_have_attribute("aria-label", re.compile("from it, suspended"))
    for node in east:
        pair.admin(node, "/admin/sink/resume", {})
    expect(alarms).not_to_contain_text("Set by operators")


def test_a_write_is_seen_crossing(pair: Clusters, open_page: OpenPage) -> None:
    """While clients write, the arrows of both clusters' pages show the changes per second."""
    sent = open_page(pair.nodes["east-1"]["admin"], "overview", width=360)
    come = open_page(pair.nodes["west-1"]["admin"], "overview")
    for tab, words in (
        (sent, re.compile(r"west: to it, [^;]*, [1-9][\d.]* /s.*; from it")),
        (come, re.compile(r"from it, [^;]*, [1-9][\d.]* /s")),
    ):

        def passing(tab: BrowserPage = tab, words: re.Pattern[str] = words) -> bool:
            write_for(pair, 0.5)
            return bool(words.search(picture(tab).get_attribute("aria-label") or ""))

        eventually(passing, "a rate")
        assert re.search(r"[1-9][\d.]* /s", picture(tab).text_content() or "")


def newest(tab: BrowserPage, title: str) -> str:
    """The newest values of a chart in words, as a screen reader has them."""
    return tab.page.get_by_label(title, exact=True).locator("p").inner_text()


def seen_by_cursor(tab: BrowserPage, title: str, pixels: int) -> list[str]:
    """The legends of a chart, with the cursor over its last pixels from right to left."""
    chart = tab.page.get_by_label(title, exact=True)
    plot = chart.locator(".u-over")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    assert box is not None
    found = []
    for step in range(1, pixels, 2):
        tab.page.mouse.move(box["x"] + box["width"] - step, box["y"] + box["height"] / 2)
        tab.page.wait_for_timeout(30)  # a frame or two
        found.append(chart.locator(".u-legend").inner_text().replace("\n", " "))
    return found


def write_for(pair: Clusters, seconds: float) -> None:
    """Writes through east-1, some each second."""
    deadline = time.monotonic() + seconds
    number = 0
    while time.monotonic() < deadline:
        pair.put("east", "telemetry", f"k{number % 20}", "v")
        number += 1
        time.sleep(0.05)


def test_charts_show_writes_as_they_happen_and_after_a_reload(pair: Clusters, open_page: OpenPage) -> None:
    """Every chart is there; writes appear by the stream, without another request for the history; after a reload they
    are still there, also for a node and a bucket type, which the address names."""
    tab = open_page(pair.nodes["east-1"]["admin"], "telemetry?range=minutes")
    expect(tab.page.locator("#top")).to_contain_text("live")
    titles = {each.get_attribute("aria-label") for each in tab.page.locator("figure.chart:visible").all()}
    assert titles == CHARTS
    expect(tab.page.get_by_label("Replicated entries").locator("canvas")).to_be_visible()
    asked = len(histories(tab))
    write_for(pair, 7)
    write = re.compile(r"write: [1-9][\d.]* /s")
    assert write.search(newest(tab, "Replicated entries")), newest(tab, "Replicated entries")
    assert re.search(r"write: [\d.]+ [mµ]?s", newest(tab, "Apply duration, mean"))
    assert newest(tab, "Worst partition: members in sync and min-ISR") == "Newest values: in sync: 3, min-ISR: 2"
    assert newest(tab, "Nodes that answered, whose numbers are added up") == "Newest values: nodes: 4"
    assert len(histories(tab)) == asked
    assert any(re.search(r"write[1-9]", each) for each in seen_by_cursor(tab, "Replicated entries", 40))
    assert re.search(r"put: [1-9][\d.]* /s", newest(tab, "Requests, by kind"))
    assert re.search(r"PUT: [\d.]+ m?s", newest(tab, "Duration of requests of one object, 99th percentile"))
    replicated = tab.page.get_by_label("Replicated entries", exact=True)
    legend = replicated.locator(".u-legend").inner_text()  # what is seen of it
    assert "write" in legend
    assert "reap" not in legend
    expect(replicated).to_contain_text("are 0 or unknown all the time")

    eventually(lambda: "write: 0 /s" in newest(tab, "Replicated entries"), "writes are over")
    tab.page.reload()
    tab.rendered()
    assert "range=minutes" in tab.page.url
    eventually(
        lambda: any(re.search(r"write[1-9]", each) for each in seen_by_cursor(tab, "Replicated entries", 80)),
        "the writes before the reload",
    )
    tab.choose("Bucket type", "default")
    tab.choose("Of", "east-2")
    tab.rendered()
    assert {"node=east-2", "type=default"} <= set(tab.page.url.partition("?")[2].split("&"))
    expect(tab.page.get_by_label("Nodes that answered, whose numbers are added up")).to_be_hidden()
    expect(tab.page.locator("#top")).to_contain_text("live")
    assert any("bucket_type=default" in each for each in tab.requests if "/admin/live" in each)
    assert re.search(r"log: [\d.]+ [kM]?B", newest(tab, "Size on disk, of all bucket types"))
    tab.choose("Over", "day")
    tab.rendered()
    assert "range=day" in tab.page.url


def histories(tab: BrowserPage) -> list[str]:
    """Requests for places of the history."""
    return [each for each in tab.requests if "/admin/history?" in each]


def test_a_page_has_one_stream(pair: Clusters, open_page: OpenPage) -> None:
    """A tab has one open stream at its node, whichever pages it visits; a closed tab has none."""
    tab = open_page(pair.nodes["east-2"]["admin"], "overview")
    for page_id in ("cluster", "telemetry", "overview"):
        tab.page.goto(f"{tab.admin}/#/{page_id}")
        tab.rendered()
    expect(tab.page.locator("#top")).to_contain_text("live")
    assert streams(pair) == 1
    tab.page.goto("about:blank")
    eventually(lambda: streams(pair) == 0, "the stream has ended")


def streams(pair: Clusters) -> int:
    """Open streams of east-2."""
    _, data, _ = http_request(pair.nodes["east-2"]["admin"] + "/metrics")
    found = re.search(r"^isthmus_live_streams(?:\{.*\})? (\d+)", data.decode(), re.MULTILINE)
    assert found
    return int(found[1])
