"""The pages Queues and Sinks, in a browser, on a pair of real clusters: their contents, and each act with its
effect."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Locator, Route, expect

from isthmus.node.http.authorization import TokenRole
from isthmus.node.local import dev_certificates
from isthmus.repl.model.vclock import decode_clock, encode_clock
from isthmus.repl.security.tls import NodeName
from tests.support.dashboard_browser import BrowserPage
from tests.support.threaded_node import running_node
from tests.system.dashboard.test_faults import frozen
from tests.system.dashboard.test_sessions import SECURE, SecureNode
from tests.system.fullsync.clusters import Clusters, eventually, http_request

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

OpenPage = Callable[..., BrowserPage]

HTML = "<img src=x onerror=alert(1)>&amp;"
"""A name that must never become HTML."""

SLOW = re.compile(r"/filter\?type=slow&")
"""Questions about a bucket type of this name."""

BYTES = "%FE%80"
"""A percent-encoded name that is not text."""


@pytest.fixture
def queues(pair: Clusters, open_page: OpenPage) -> BrowserPage:
    """The page Queues of east-1, at the queue to west."""
    return open_page(pair.nodes["east-1"]["admin"], "queues?name=to-west")


@pytest.fixture
def letters_dropped(pair: Clusters) -> Iterator[None]:
    """Drops the dead letters that a test leaves in east, also one that fails, once its pages are closed."""
    yield
    for node in letters(pair):
        pair.admin("east-1", "/admin/sink/dead-letters/drop", {"node": node})


@pytest.fixture
def sinks(pair: Clusters, letters_dropped: None, open_page: OpenPage) -> BrowserPage:
    """The page Sinks of east-1."""
    return open_page(pair.nodes["east-1"]["admin"], "sinks")


def suspend_west(pair: Clusters) -> None:
    """West begins no fetch from now on, so that changes wait in the queue."""
    pair.admin("west-1", "/admin/sink/suspend", {})
    eventually(lambda: not pair.fetching("west-1"), "running fetches end")


@pytest.fixture
def idle_west(pair: Clusters) -> Iterator[None]:
    """West has fetched all, and fetches nothing more; afterwards it does again."""
    eventually(lambda: waiting(pair) == 0 and queue_of(pair)["consumers"], "west has fetched all")
    suspend_west(pair)
    yield
    pair.admin("west-1", "/admin/sink/resume", {})


def queue_of(pair: Clusters) -> dict[str, Any]:
    """The queue to west as the nodes of east have it together."""
    found = pair.admin("east-1", "/admin/queues/cluster")["queues"]
    return next(dict(queue) for queue in found if queue["name"] == "to-west")


def waiting(pair: Clusters) -> int | None:
    """Changes that wait for west in real time; None: unknown."""
    found: int | None = queue_of(pair)["priorities"]["real_time"]["waiting"]
    return found


def button(tab: BrowserPage, name: str) -> Locator:
    """A button of the queue that is shown."""
    return tab.region("Queue to-west").get_by_role("button", name=name, exact=True)


def row_of(table: Locator, text: str) -> Locator:
    """The row of a table that has the text."""
    return table.get_by_role("row").filter(has_text=text)


# -- queues -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("idle_west")
def test_any_node_shows_what_waits_in_the_whole_cluster(pair: Clusters, open_page: OpenPage) -> None:
    """The page shows the sum of all nodes' backlogs with the oldest change's age, the nodes that fetched, and keys with
    HTML in their names as text. After everything has arrived it shows that nothing waits."""
    for number in range(12):
        pair.put("east", HTML, f"{HTML}{number}", "v")
    tabs = [open_page(pair.nodes[node]["admin"], "queues") for node in ("east-1", "east-4")]
    for tab in tabs:
        row = row_of(tab.region("Queues of all nodes together"), "to-west")
        for words in ("west", "12", "running", "ago"):
            expect(row).to_contain_text(words)
        expect(row_of(tab.region("What waits in queue to-west"), "real time")).to_contain_text("12")
        expect(row_of(tab.region("Nodes that fetch from queue to-west"), "west-1")).to_have_count(1)
    tab = tabs[0]
    button(tab, "Show the next changes").click()
    expect(tab.dialog).to_contain_text("Of the partitions that east-1 leads")
    (led,) = pair.admin("east-1", "/admin/queues")["queues"]
    expect(tab.dialog.locator("code").filter(has_text=HTML)).to_have_count(2 * led["waiting"])
    tab.close_dialog()
    pair.admin("west-1", "/admin/sink/resume", {})
    expect(row_of(tab.region("What waits in queue to-west"), "real time")).to_contain_text("nothing waits")
    expect(tab.region("Queue to-west")).to_contain_text(re.compile("Ledger ●closes"))


def test_publishing_and_serving_are_suspended_and_resumed(pair: Clusters, queues: BrowserPage) -> None:
    """The dialog states the effect in numbers; the page shows who suspended, when and why, has a button that ends each
    suspension, and lists the gap that it makes, which is closed by hand at the end."""
    eventually(lambda: waiting(pair) == 0, "nothing waits")
    text = queues.fill_in(button(queues, "Suspend …"), {"What": "both"})
    assert "Queue to-west publishes no changes on all nodes, and serves none" in text
    assert re.search(r"Waiting or in flight, real time\s+0", text)
    assert "Done." in queues.confirm("Suspend", by="Ada", reason="west <b>moves</b>")
    queues.close_dialog()
    table = queues.region("Suspensions of queue to-west")
    for what in ("serving", "publishing"):
        for words in ("all nodes", "Ada", "west <b>moves</b>"):
            expect(row_of(table, what)).to_contain_text(words)
    expect(row_of(queues.region("Queue to-west by node"), "east-3")).to_contain_text("suspended")
    gaps = queues.region("Open gaps of queue to-west")
    expect(gaps).to_contain_text("still grows")
    pair.put("east", "b", "left out", "v")
    for what, words in (("publishing", "stays a gap until a full-sync closes it"), ("serving", "0 changes wait")):
        text = queues.ask(row_of(table, what).get_by_role("button", name="Resume"))
        assert words in text
        queues.confirm("Resume")
        queues.close_dialog()
        expect(row_of(table, what)).to_have_count(0)
    eventually(lambda: queue_of(pair)["serving"] == queue_of(pair)["publishing"] == "running", "all nodes have read it")
    close = gaps.get_by_role("button", name="Close", exact=True)
    expect(close.first).to_be_visible()
    assert "The record of this gap is removed" in queues.ask(close.first)
    result = queues.confirm("Close the gap")
    assert "1 gap closed." in result
    queues.close_dialog()
    ids = [gap["id"] for gap in pair.admin("east-1", "/admin/gaps?queue=to-west")["gaps"]]
    pair.admin("east-1", "/admin/queues/to-west/gaps/close", {"ids": ids})
    expect(queues.region("Queue to-west")).to_contain_text("None is open.")


def test_one_node_alone_is_suspended(pair: Clusters, queues: BrowserPage) -> None:
    """Suspended on one node, serving is mixed, and that node's row shows it; a suspension of all nodes is a separate
    one."""
    text = queues.fill_in(button(queues, "Suspend …"), {"What": "serving", "Where": "east-2"})
    assert "serves no changes on node east-2" in text
    queues.confirm("Suspend")
    queues.close_dialog()
    expect(row_of(queues.region("Queues of all nodes together"), "to-west")).to_contain_text("mixed")
    parts = queues.region("Queue to-west by node")
    expect(row_of(parts, "east-2")).to_contain_text("suspended")
    expect(row_of(parts, "east-1")).not_to_contain_text("suspended")
    table = queues.region("Suspensions of queue to-west")
    text = queues.ask(table.get_by_role("button", name="Resume"))
    assert "Resume serving of queue to-west on east-2?" in text
    queues.confirm("Resume")
    queues.close_dialog()
    expect(table).to_have_count(0)
    eventually(lambda: queue_of(pair)["serving"] == "running", "all nodes have read it")


@pytest.mark.usefixtures("idle_west")
def test_a_queue_is_cleared_after_its_loss_is_said_in_numbers(pair: Clusters, queues: BrowserPage) -> None:
    """Clearing turns the backlog into gaps, which the page then lists. Escape cancels."""
    for number in range(3):
        pair.put("east", "b", f"cleared {number}", "v")
    expect(row_of(queues.region("What waits in queue to-west"), "real time")).to_contain_text("3")
    text = queues.ask(button(queues, "Clear"))
    assert "This discards 3 changes that wait for west, 0 references of full-sync and 0 of folds" in text
    queues.page.keyboard.press("Escape")
    expect(queues.dialog).to_have_count(0)
    assert waiting(pair) == 3
    queues.act(button(queues, "Clear"), "Clear the queue", by="Ada", reason="stale")
    expect(row_of(queues.region("What waits in queue to-west"), "real time")).to_contain_text("nothing waits")
    gaps = queues.region("Open gaps of queue to-west")
    expect(gaps).to_contain_text("by Ada: stale")
    ids = [gap["id"] for gap in pair.admin("east-1", "/admin/gaps?queue=to-west")["gaps"]]
    pair.admin("east-1", "/admin/queues/to-west/gaps/close", {"ids": ids})
    expect(gaps).to_have_count(0)


def test_a_release_shows_its_effect_before(pair: Clusters, queues: BrowserPage) -> None:
    """The dialog first asks from where the next cluster begins; the page refuses an invalid time; without the
    confirmation the owner stays, and with it there is none until a cluster fetches again."""
    eventually(lambda: queue_of(pair)["owner"], "west has fetched")
    values = {"The next cluster begins with": "time", "The time, if so": "yesterday"}
    text = queues.fill_in(button(queues, "Release …"), values)
    assert "one such as 2026-02-03T04:05 is right" in text
    queues.close_dialog()
    text = queues.fill_in(button(queues, "Release …"), {"The next cluster begins with": "now"})
    assert "from west; the next cluster that fetches begins with new changes: waiting changes become a gap" in text
    queues.close_dialog()
    assert queue_of(pair)["owner"]["cluster"] == "west"
    suspend_west(pair)
    queues.fill_in(button(queues, "Release …"), {"The next cluster begins with": "now"})
    assert "Done." in queues.confirm("Release", by="Ada")
    queues.close_dialog()
    eventually(lambda: queue_of(pair)["owner"] is None, "nobody owns the queue")
    expect(row_of(queues.region("Queues of all nodes together"), "to-west")).to_contain_text("none yet")
    expect(button(queues, "Release …")).to_have_count(0)
    pair.admin("west-1", "/admin/sink/resume", {})
    eventually(lambda: (queue_of(pair)["owner"] or {}).get("cluster") == "west", "west owns it again", 150)


def test_rates_are_set_and_are_those_of_the_files_again(pair: Clusters, queues: BrowserPage) -> None:
    """A limit left empty stays, and an empty form changes nothing; the page shows the limit of the file and the one in
    force, the operator, and the total rate of all nodes."""
    text = queues.fill_in(button(queues, "Set rates …"), {})
    assert "Bytes, changes, or both are needed." in text
    queues.close_dialog()
    text = queues.fill_in(button(queues, "Set rates …"), {"Bytes a second": "5XB"})
    assert 'a size is right, such as "5MB"' in text
    queues.close_dialog()
    text = queues.fill_in(button(queues, "Set rates …"), {"Bytes a second": "5MB", "Changes a second": "500"})
    assert "at most 5 MB of payload a second, 20 MB on 4 nodes together" in text
    queues.confirm("Set the rates", by="Ada", reason="a thin line")
    queues.close_dialog()
    shown = queues.region("Queue to-west")
    expect(shown).to_contain_text("5 MB/s, 500 changes/s")
    expect(shown).to_contain_text("a thin line")
    row = row_of(queues.region("Queue to-west by node"), "east-4")
    for words in ("no limit", "5 MB/s, 500 changes/s"):
        expect(row).to_contain_text(words)
    queues.fill_in(button(queues, "Set rates …"), {"Changes a second": "0"})
    queues.confirm("Set the rates")
    queues.close_dialog()
    (queue,) = pair.admin("east-1", "/admin/queues")["queues"]
    assert queue["throttle"]["configured"] == {"bytes_per_second": 5_000_000, "objects_per_second": None}
    for node in ("east-2", "east-3", "east-4"):
        expect(row_of(queues.region("Queue to-west by node"), node)).not_to_contain_text("500 changes/s")
    text = queues.ask(button(queues, "Use the files’ rates"))
    assert "In the files: no limit. In force now: 5 MB/s." in text
    queues.confirm("Use them")
    queues.close_dialog()
    expect(button(queues, "Use the files’ rates")).to_have_count(0)


def test_keys_are_pushed_and_a_filter_is_asked(pair: Clusters, queues: BrowserPage) -> None:
    """Pushed keys are sent again, also those whose names are not text; the filter test shows its verdict with the rule,
    and a note about a bucket type that does not exist."""
    pair.put("east", HTML, HTML, "v")
    before = queue_of(pair)["nodes"]["east-1"]["priorities"]["full_sync"]["queued"]
    keys = f"{quote(HTML, safe='')}\n{BYTES}\n"
    values = {"Name of the bucket": quote(HTML, safe=""), "Keys": keys, "Names are": "percent"}
    text = queues.fill_in(button(queues, "Push keys …"), {"Bucket type": "default", **values})
    assert "Push 2 keys into queue to-west?" in text
    assert "2 references queued." in queues.confirm("Push")
    queues.close_dialog()
    assert queue_of(pair)["nodes"]["east-1"]["priorities"]["full_sync"]["queued"] == before + 2
    text = queues.fill_in(button(queues, "Test the filter …"), {"Bucket type": "nothing", "Name of the bucket": HTML})
    assert "offered" in text
    assert 'no such bucket type: "nothing"' in text
    queues.close_dialog()


@pytest.mark.usefixtures("idle_west")
def test_names_that_look_alike_are_told_apart(pair: Clusters, queues: BrowserPage) -> None:
    """The byte FF and the text \xff are two names: the list of next changes shows both, and the forms accept both."""
    text = queues.fill_in(
        button(queues, "Push keys …"),
        {"Name of the bucket": "FF", "Keys": "5c 78 66 66\nff\n", "Names are": "hex"},
    )
    assert "to bucket %FF (percent-encoded) of type default" in text
    assert "2 references queued." in queues.confirm("Push")
    queues.close_dialog()
    button(queues, "Show the next changes").click()
    expect(queues.dialog.locator("code").filter(has_text=re.compile(r"^\\xff$"))).to_have_count(1)
    expect(queues.dialog.locator("code").filter(has_text=re.compile("^%FF$"))).to_have_count(3)  # a key, two buckets
    queues.close_dialog()
    expect(button(queues, "Show the next changes")).to_be_focused()
    button(queues, "Test the filter …").click()
    queues.dialog.get_by_label("Name of the bucket").fill("%F")
    queues.choose("Names are typed as", "percent")
    queues.dialog.get_by_role("button", name="Ask").click()
    expect(queues.dialog).to_contain_text("two hexadecimal digits follow each %")
    queues.dialog.get_by_label("Name of the bucket").fill("%FF")
    queues.dialog.get_by_role("button", name="Ask").click()
    expect(queues.dialog.get_by_role("status")).to_contain_text("offered")
    queues.close_dialog()


def test_an_answer_to_an_older_question_is_not_shown(queues: BrowserPage) -> None:
    """The page shows the answer to the latest query, although the answer to an older one arrives later."""
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    queues.page.route(SLOW, hold)
    button(queues, "Test the filter …").click()
    queues.dialog.get_by_label("Name of the bucket").fill("b")
    for bucket_type in ("slow", "default"):
        queues.dialog.get_by_label("Bucket type").fill(bucket_type)
        queues.dialog.get_by_role("button", name="Ask").click()
    expect(queues.dialog.get_by_role("status")).to_contain_text("offered")
    with queues.page.expect_response(SLOW):
        held[0].continue_()
    queues.page.evaluate("new Promise((done) => setTimeout(done))")
    expect(queues.dialog).not_to_contain_text("no such bucket type")
    queues.close_dialog()


def test_a_queue_that_is_not_there_is_said(queues: BrowserPage) -> None:
    """The address of a removed queue shows that the queue does not exist; rarer acts are commands to type."""
    queues.goto("queues?name=<b>gone")
    expect(queues.region("Queues")).to_contain_text("There is no queue named <b>gone here.")
    queues.page.get_by_text("Register, change, move and delist queues").click()
    commands = [f"isthmus queue {verb}" for verb in ("register", "set", "place", "delist")]
    expect(queues.page.locator(".command code")).to_contain_text(commands)


def test_a_number_that_is_not_known_is_said_with_the_reason(pair: Clusters, queues: BrowserPage) -> None:
    """An unknown number is shown as at least the known part, never as 0, in the table and below; the node that did not
    answer is named with the reason. A failed request affects its own part of the page only."""
    queues.allow("status of 503")

    def without_east_3(route: Route) -> None:
        answer = route.fetch().json()
        (queue,) = answer["queues"]
        queue["priorities"]["real_time"] = {"waiting": None, "in_flight": None, "at_least": 12}
        queue |= {"oldest_age_ms": None, "unknown": "node east-3 does not answer"}
        queue["nodes"]["east-3"] = None
        route.fulfill(json={**answer, "unknown": {"east-3": "outcome-unknown: it did not answer within 2000 ms"}})

    def refused(route: Route) -> None:
        route.fulfill(status=503, json={"error": "the store is <b>busy</b>", "reason": "overloaded"})

    queues.page.route("**/admin/queues/cluster", without_east_3)
    queues.page.route("**/admin/gaps", refused)
    queues.page.reload()
    queues.rendered()
    head = queues.region("Queues")
    for words in (
        "east-3 did not answer",
        "outcome-unknown: it did not answer within 2000 ms",
        "to-west: numbers are unknown, since node east-3 does not answer",
    ):
        expect(head).to_contain_text(words)
    row = row_of(queues.region("What waits in queue to-west"), "real time")
    expect(row).to_contain_text("unknown, at least 12")
    expect(row).not_to_contain_text("nothing waits")
    expect(row_of(queues.region("Queue to-west by node"), "east-3")).to_contain_text("unknown")
    expect(queues.region("Queue to-west")).to_contain_text("the store is <b>busy</b> (overloaded)")
    expect(queues.region("Queue to-west")).to_contain_text("Ledger")
    queues.page.unroute("**/admin/queues/cluster")
    queues.page.route("**/admin/queues/cluster", refused)
    expect(queues.page.locator("#main")).to_contain_text("What is shown is of")
    expect(row).to_contain_text("unknown, at least 12")
    assert queue_of(pair)["unknown"] == ""


@pytest.mark.slow
def test_a_silent_node_is_named_on_both_pages(pair: Clusters, open_page: OpenPage) -> None:
    """While a node is stopped, sums of the sinks are marked as lacking it; afterwards they are complete again."""
    admin = pair.nodes["east-1"]["admin"]
    with frozen(pair, "east-3"):
        queues, sinks = open_page(admin, "queues?name=to-west"), open_page(admin, "sinks")
        expect(queues.region("Queues")).to_contain_text("east-3 did not answer")
        assert queues.violations() == []
        expect(sinks.region("What is fetched")).to_contain_text("east-3 did not answer")
        expect(sinks.region("What is fetched, by queue and cluster")).to_contain_text("unknown")
        expect(sinks.region("Dead letters")).to_contain_text("unknown")
        expect(row_of(sinks.region("Sinks by node"), "east-3")).to_contain_text("unknown")
        assert sinks.violations() == []
    expect(queues.region("Queues")).not_to_contain_text("east-3 did not answer", timeout=90_000)
    expect(sinks.region("What is fetched, by queue and cluster")).not_to_contain_text("unknown", timeout=90_000)


# -- sinks ------------------------------------------------------------------------------------------------------------


def link_states(pair: Clusters) -> dict[str, str]:
    """Node of east -> the state of its link to west."""
    nodes = pair.admin("east-1", "/admin/sink/nodes")["nodes"]
    return {each["node"]: each["sink"]["sinks"][0]["state"] for each in nodes}


def test_links_are_suspended_by_queue_by_peer_and_on_one_node(pair: Clusters, sinks: BrowserPage) -> None:
    """The dialog shows how many links stop; states and reasons change on all nodes, and each suspension is ended by its
    own button."""
    eventually(lambda: set(link_states(pair).values()) == {"running"}, "all links run")
    peer = pair.nodes["west-1"]["http"]
    row = row_of(sinks.region("What is fetched, by queue and cluster"), "to-east")
    expect(row).to_contain_text("4 of 4")
    text = sinks.ask(row.get_by_role("button", name="Suspend"))
    assert "Suspend fetching: queue to-east, on all nodes?" in text
    assert "4 links of 4 nodes start no new fetch" in text
    sinks.confirm("Suspend", by="Ada", reason="<b>quiet</b>")
    sinks.close_dialog()
    expect(row).to_contain_text("0 of 4")
    eventually(lambda: set(link_states(pair).values()) == {"suspended"}, "all links are suspended")
    table = sinks.region("Suspensions")
    expect(table).to_contain_text("<b>quiet</b>")
    links = sinks.region("Links: each node with each peer and queue")
    expect(row_of(links, "east-4")).to_contain_text("by Ada: <b>quiet</b>")
    sinks.act(row_of(links, "east-4").get_by_role("button", name="Resume"), "Resume")
    expect(table).to_have_count(0)
    eventually(lambda: set(link_states(pair).values()) == {"running"}, "all links run again")

    expect(row_of(links, "east-2")).to_contain_text("running")
    text = sinks.ask(row_of(links, "east-2").get_by_role("button", name="Suspend peer"))
    assert f"Suspend fetching: all queues at {peer}, on all nodes?" in text
    sinks.close_dialog()
    wanted = {"Queue": "", "Peer": peer, "Where": "east-2"}
    text = sinks.fill_in(sinks.page.get_by_role("button", name="Suspend …"), wanted)
    assert "1 link of 1 node start" in text
    assert "3 other links of the same queue go on" in text
    sinks.confirm("Suspend")
    sinks.close_dialog()
    eventually(lambda: link_states(pair)["east-2"] == "suspended", "one link is suspended")
    assert link_states(pair)["east-1"] == "running"
    sinks.page.get_by_label("only what does not run").check()
    expect(links.get_by_role("row")).to_have_count(2)
    assert "only=amiss" in sinks.page.url
    sinks.act(table.get_by_role("button", name="Resume"), "Resume")
    expect(sinks.region("Links")).to_contain_text("Every link runs.")


def test_workers_and_rates_are_set_and_are_those_of_the_files_again(pair: Clusters, sinks: BrowserPage) -> None:
    """Workers and rates are set for all nodes, for one node, and for a queue; contradictory values are refused before
    any request."""

    def named(name: str) -> Locator:
        return sinks.region("Workers and limits").get_by_role("button", name=name)

    def limits(node: str) -> dict[str, Any]:
        return dict(pair.admin(node, "/admin/sink"))

    before = limits("east-1")["workers"]["count"]
    for values, words in (
        ({}, "Workers: a number is needed."),
        ({"Workers": "0"}, "a whole number from 1 to 256 is right"),
        ({"Workers": "2", "Most at one peer": "3"}, "at most 2, the workers of the node, is right"),
        ({"Of": "to-east", "Workers": "2", "Most at one peer": "1"}, "leave it empty for a queue"),
    ):
        assert words in sinks.fill_in(named("Set workers …"), values)
        sinks.close_dialog()
    text = sinks.fill_in(named("Set workers …"), {"Workers": "6", "Most at one peer": "3"})
    assert "at most 6 workers, at most 3 workers at one peer" in text
    assert f"east-2 {before} workers" in text
    sinks.confirm("Set", by="Ada")
    sinks.close_dialog()
    sinks.fill_in(named("Set workers …"), {"Of": "to-east", "Where": "east-2", "Workers": "2"})
    sinks.confirm("Set")
    sinks.close_dialog()
    sinks.fill_in(named("Set rates …"), {"Where": "east-3", "Bytes a second": "20MB", "Changes a second": "5000"})
    sinks.confirm("Set")
    sinks.close_dialog()
    table = sinks.region("Sinks by node")
    for node, words in (
        ("east-1", "of 6"),
        ("east-1", "Ada"),
        ("east-2", "to-east 2"),
        ("east-3", "20 MB/s, 5,000 changes/s"),
        ("east-4", "no limit"),
    ):
        expect(row_of(table, node)).to_contain_text(words)
    for what, node in (("workers", ""), ("queue to-east", "east-2"), ("rates", "east-3")):
        sinks.fill_in(named("Use the files’ …"), {"What": what, "Where": node})
        sinks.confirm("Use the files’")
        sinks.close_dialog()
    eventually(lambda: limits("east-1")["workers"]["count"] == before, "the files count")
    eventually(lambda: limits("east-2")["workers"]["queue_limits"] == {}, "the queue has no limit of its own")
    unlimited = {"bytes_per_second": None, "objects_per_second": None}
    eventually(lambda: limits("east-3")["throttle"]["configured"] == unlimited, "there is no rate limit")
    expect(row_of(table, "east-3")).to_contain_text("no limit")


def refuse(pair: Clusters, keys: list[str]) -> None:
    """Write objects in west that are larger than east takes (see conftest.py), and wait for their dead letters."""
    for key in keys:
        pair.put("west", HTML, key, "v" * 1_500_000)
    eventually(lambda: kept(pair) == len(keys), "all are refused")


def write_ahead(pair: Clusters, key: str, entries: int) -> None:
    """Write `key` in east, then in west with a clock that names a write which is that many entries further in the log
    of the key's partition in east."""
    clock = decode_clock(base64.b64decode(pair.put("east", HTML, key, "v")))
    actor, counter, at_s = max(clock, key=lambda entry: entry[1])
    named = (*(entry for entry in clock if entry[0] != actor), (actor, counter + entries, at_s))
    pair.put("west", HTML, key, f"ahead by {entries}", base64.b64encode(encode_clock(tuple(sorted(named)))).decode())


def letters(pair: Clusters) -> dict[str, list[dict[str, Any]]]:
    """Node of east -> its dead letters."""
    nodes = pair.admin("east-1", "/admin/sink/dead-letters/nodes")["nodes"]
    return {each["node"]: each["dead_letters"] for each in nodes}


def kept(pair: Clusters) -> int:
    """Dead letters of all nodes of east."""
    return sum(map(len, letters(pair).values()))


def test_dead_letters_of_all_nodes_are_retried_and_dropped(pair: Clusters, sinks: BrowserPage) -> None:
    """Dead letters are retried and dropped one by one, and all of all nodes: a letter refused again stays with the
    reason, a dropped one is gone, and the dialog's numbers equal the page's. Names are shown as text."""
    refuse(pair, [f"{HTML}{number}" for number in range(12)])
    having = {node: rows for node, rows in letters(pair).items() if rows}
    card = sinks.region("Dead letters")
    expect(card).to_contain_text("Dead letters (12)")
    for node, rows in having.items():
        table = sinks.region(f"Dead letters of {node}")
        expect(table.get_by_role("row")).to_have_count(len(rows) + 1)
        for words in (HTML, "too-large", "west"):
            expect(table).to_contain_text(words)
    node = next(iter(having))
    first = sinks.region(f"Dead letters of {node}").get_by_role("row").nth(1)
    assert "is pushed into this cluster again, as it was refused" in sinks.ask(
        first.get_by_role("button", name="Retry")
    )
    assert "The letter stays: rejected" in sinks.confirm("Retry")
    sinks.close_dialog()
    eventually(lambda: letters(pair)[node][0]["tries"] > 1, "it was tried again")
    assert "a full-sync may find that the clusters differ" in sinks.ask(first.get_by_role("button", name="Drop"))
    assert "It is removed." in sinks.confirm("Drop")
    sinks.close_dialog()
    expect(card).to_contain_text("Dead letters (11)")
    assert "Push 11 dead letters again?" in sinks.ask(card.get_by_role("button", name="Retry all"))
    result = sinks.confirm("Retry all", by="Ada")
    for words in ("11 of 11 tried, 0 accepted.", "11 letters left, for instance:", "rejected"):
        assert words in result
    sinks.close_dialog()
    assert "Forget 11 dead letters?" in sinks.ask(card.get_by_role("button", name="Drop all"))
    assert "11 of 11 removed." in sinks.confirm("Drop all")
    sinks.close_dialog()
    expect(card).to_contain_text("There are none.")
    assert kept(pair) == 0


def test_a_letter_is_accepted_once_its_reason_is_gone(pair: Clusters, sinks: BrowserPage) -> None:
    """Here once this cluster has made the writes that the letter's clock names: the retry takes it, and the letter
    leaves the list. Such a clock is refused only shortly after another one let the partition take another actor."""
    write_ahead(pair, "late", 1_000_000)
    eventually(lambda: "ahead by 1000000" in pair.read("east", HTML, "late")[0], "the partition took another actor")
    write_ahead(pair, "late", 30)
    eventually(lambda: kept(pair) == 1, "it is refused")
    for number in range(500):
        http_request(pair.url("east", "b", f"more {number}"), "PUT", b"v", Content_Type="text/plain")
    card = sinks.region("Dead letters")
    expect(card).to_contain_text("Dead letters (1)")
    result = sinks.act(card.get_by_role("button", name="Retry", exact=True), "Retry")
    assert re.search("Accepted: (applied|merged). The letter is removed.", result)
    expect(card).to_contain_text("There are none.")
    assert pair.read("east", HTML, "late") is not None


def test_a_retry_of_all_can_be_stopped(pair: Clusters, sinks: BrowserPage) -> None:
    """Stop ends the retry after the current letter, and the dialog shows how many were not tried; they stay
    unchanged."""
    refuse(pair, [f"stop {number}" for number in range(4)])
    card = sinks.region("Dead letters")
    expect(card).to_contain_text("Dead letters (4)")
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    sinks.page.route("**/dead-letters/retry", hold)
    sinks.ask(card.get_by_role("button", name="Retry all"))
    sinks.dialog.get_by_role("button", name="Retry all", exact=True).click()
    expect(sinks.dialog).to_contain_text("0 of 4 tried")
    sinks.dialog.get_by_role("button", name="Stop").click()
    held[0].continue_()
    expect(sinks.dialog).to_contain_text("It was stopped. 3 letters not tried.")
    assert len(held) == 1
    assert sum(one["tries"] > 1 for rows in letters(pair).values() for one in rows) == 1
    sinks.close_dialog()
    sinks.page.unroute("**/dead-letters/retry")

    sinks.allow("ERR_FAILED")
    sinks.page.route("**/dead-letters/retry", lambda route: route.abort())
    sinks.ask(card.get_by_role("button", name="Retry all"))
    result = sinks.confirm("Retry all")
    assert "this node cannot be reached; whether the change was made is not known. 3 letters not tried." in result
    assert "1 of 4 tried, 0 accepted." in result


# -- roles ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureNode]:
    """One node with TLS and tokens, and a queue from which nobody has fetched."""
    folder = tmp_path_factory.mktemp("secure")
    dev_certificates.make_certificates(folder, (NodeName("east", "n1"),))
    dev_certificates.make_tokens(folder)
    with running_node(folder, SECURE.format(folder) + '[[queues]]\nname = "to-west"\n') as running:
        yield SecureNode(f"https://127.0.0.1:{running.admin}", folder)


@pytest.mark.parametrize(
    ("role", "enabled", "disabled"),
    [
        (
            TokenRole.READ,
            ["Test the filter …", "Show the next changes"],
            ["Suspend …", "Set rates …", "Push keys …", "Clear"],
        ),
        (TokenRole.OPERATE, ["Suspend …", "Set rates …", "Push keys …"], ["Clear"]),
        (TokenRole.ADMIN, ["Suspend …", "Set rates …", "Push keys …", "Clear"], []),
    ],
)
def test_a_viewer_sees_and_an_operator_acts(
    secure: SecureNode, open_page: OpenPage, role: TokenRole, enabled: list[str], disabled: list[str]
) -> None:
    """Buttons that a role may not use are shown disabled with the role that they need. The page says so when nobody has
    fetched from a queue, and when a cluster fetches nothing."""
    tab = open_page(secure.admin, None, ignore_https_errors=True)
    tab.allow("status of 401")
    tab.page.goto(secure.admin)
    tab.page.get_by_label("Token").fill(secure.token(role))
    tab.page.get_by_role("button", name="Log in").click()
    pages = tab.page.get_by_role("navigation", name="Pages")  # alarms have links to pages, too
    pages.get_by_role("link", name="Queues").click()
    tab.rendered()
    for name in enabled:
        expect(button(tab, name)).to_be_enabled()
    for name in disabled:
        expect(button(tab, name)).to_be_disabled()
        expect(button(tab, name)).to_have_attribute("title", re.compile("needs a token of the role (operate|admin)"))
    row = row_of(tab.region("Queues of all nodes together"), "to-west")
    for words in ("none yet", "never", "nothing sent"):
        expect(row).to_contain_text(words)
    expect(tab.region("Queue to-west")).to_contain_text("No cluster has fetched yet: what is offered waits.")
    pages.get_by_role("link", name="Sinks").click()
    tab.rendered()
    expect(tab.region("What is fetched")).to_contain_text("This cluster fetches from no other cluster.")
    expect(tab.region("Dead letters")).to_contain_text("There are none.")
