"""Acts on the page Full-sync, in a browser: from the button to the effect on real clusters."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from tests.support.dashboard_browser import BrowserPage
from tests.system.fullsync.clusters import Clusters, eventually

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(180)]

OpenPage = Callable[..., BrowserPage]

HTML = "<img src=x onerror=alert(1)>&amp;"
"""A name that must never become HTML."""


@pytest.fixture
def tab(pair: Clusters, open_page: OpenPage) -> BrowserPage:
    """The page Full-sync of east-1, with times in UTC."""
    found = open_page(pair.nodes["east-1"]["admin"], "fullsync")
    found.page.get_by_label("UTC").check()
    return found


def peer_of(pair: Clusters, node: str = "east-1") -> dict[str, Any]:
    """West, as a node of east has it."""
    (found,) = pair.admin(node, "/admin/fullsync")["peers"]
    return dict(found)


def section(tab: BrowserPage) -> Locator:
    """The page's region for west."""
    return tab.region("Full-sync west")


def button(tab: BrowserPage, name: str) -> Locator:
    """A button in the region of west."""
    return section(tab).get_by_role("button", name=name, exact=True)


def test_a_check_is_run_and_names_the_keys_that_differ(pair: Clusters, tab: BrowserPage) -> None:
    """The dialog shows the compared data, the node, and the handling of differences; the result is listed with the
    operator, and key names are shown as text."""
    pair.admin("west-1", "/admin/sink/suspend", {})
    eventually(lambda: not pair.fetching("west-1"), "running fetches end")
    pair.put("east", HTML, HTML, "v")
    text = tab.fill_in(button(tab, "Run now"), {"On node": "east-2", "What is compared": "all"})
    assert "Run a check of kind all of west on east-2 now?" in text
    assert "What differs and is newer here is queued for repair in to-west." in text
    assert not pair.admin("east-2", "/admin/fullsync")["peers"][0]["results"]
    result = tab.confirm("Run now", by=HTML)
    assert "The check has begun" in result
    tab.close_dialog()
    eventually(lambda: peer_of(pair, "east-2")["results"], "the check has ended")
    rows = tab.region("Results of checks, the newest first").get_by_role("row").filter(has_text="east-2")
    expect(rows.first).to_contain_text(HTML)
    named = tab.page.locator("details[data-key='named west']")
    named.locator("summary").click()
    expect(named.locator("code").filter(has_text=HTML)).to_have_count(2)
    tab.choose("Node", "east-3")
    expect(tab.region("Results")).to_contain_text("No check has ended yet.")
    assert "node=east-3" in tab.page.url
    pair.admin("west-1", "/admin/sink/resume", {})
    eventually(lambda: pair.read("west", HTML, HTML), "repaired or replicated")


def test_full_sync_is_suspended_and_resumed(pair: Clusters, tab: BrowserPage) -> None:
    """Full-sync is suspended on all nodes, with the reason; the table of suspensions shows it with the button that ends
    it."""
    text = tab.fill_in(button(tab, "Suspend"), {"On": ""})
    assert "Suspend west on all nodes?" in text
    assert "Meanwhile nothing is proven, and nothing is repaired." in text
    result = tab.confirm("Suspend", by="Ada", reason="west <b>moves</b>")
    assert "It holds on east-1, east-2, east-3, east-4." in result
    tab.close_dialog()
    assert peer_of(pair, "east-3")["state"] == "suspended"
    people = tab.region("Suspended by people")
    for words in ("Ada", "west <b>moves</b>", "west"):
        expect(people).to_contain_text(words)
    expect(section(tab)).to_contain_text("none: suspended")
    text = tab.ask(people.get_by_role("button", name="Resume", exact=True))
    assert "Resume west on all nodes?" in text
    tab.confirm("Resume")
    tab.close_dialog()
    expect(people).to_have_count(0)
    assert peer_of(pair, "east-3")["state"] != "suspended"


def test_the_schedule_is_changed_and_is_that_of_the_files_again(pair: Clusters, tab: BrowserPage) -> None:
    """New numbers are in force on all nodes and are shown with the operator; an empty form and a refusal by the node
    are reported; after a reset the files' numbers are in force again."""
    text = tab.fill_in(button(tab, "Schedule"), {})
    assert "Nothing is changed: fill in what is to be different." in text
    tab.close_dialog()
    text = tab.fill_in(button(tab, "Schedule"), {"Checks a day of kind hour": "6", "When auto": "22-6"})
    assert "hour = 6, all_window = 22-6" in text
    tab.confirm("Change the schedule", by="Ada")
    tab.close_dialog()
    assert (peer_of(pair, "east-4")["wants"].get("hour"), peer_of(pair, "east-4")["all_window"]) == (6, "22-6")
    expect(section(tab)).to_contain_text("Set by Ada")
    expect(section(tab)).to_contain_text("6 hour")
    expect(tab.region("Schedule")).to_contain_text("hour")
    tab.allow("status of 400")
    tab.fill_in(button(tab, "Schedule"), {"When auto": "noon"})
    assert "all_window" in tab.confirm("Change the schedule")
    tab.close_dialog()
    tab.fill_in(button(tab, "As in the files"), {"On": ""})
    tab.confirm("Use the files")
    tab.close_dialog()
    expect(button(tab, "As in the files")).to_have_count(0)
    assert "hour" not in peer_of(pair, "east-4")["wants"]


def test_a_range_is_set_and_cleared(pair: Clusters, tab: BrowserPage) -> None:
    """A range is set on one node, in the page's time zone; the page refuses one that ends before it begins."""
    when = {"On node": "east-2", "Since": "2026-01-02T03:04:05", "Before": "2026-01-02T03:00:00"}
    text = tab.fill_in(button(tab, "Set range"), when)
    assert "The range ends before it begins" in text
    tab.close_dialog()
    when["Before"] = "2026-01-03T00:00:00"
    text = tab.fill_in(button(tab, "Set range"), {**when, "Only this bucket": HTML})
    assert f"2026-01-02 03:04:05Z to 2026-01-03 00:00:00Z, bucket {HTML}" in text
    tab.confirm("Set the range")
    tab.close_dialog()
    found = peer_of(pair, "east-2")["range"]
    assert (found["since_ms"], found["bucket"]) == (1_767_323_045_000, HTML)
    assert peer_of(pair)["range"] is None
    row = tab.region("Full-sync west by node").get_by_role("row").filter(has_text="east-2")
    expect(row).to_contain_text(HTML)
    text = tab.ask(row.get_by_role("button", name="Clear range"))
    assert "Other nodes keep theirs." in text
    tab.confirm("Clear the range")
    tab.close_dialog()
    expect(row).to_contain_text("none")
    for typed, form, shown in ((" a", "text", ", bucket a"), ("%FF", "percent", ", bucket %FF (percent-encoded)")):
        names = {"Only this bucket": typed, "Names are typed as": form}
        text = tab.fill_in(button(tab, "Set range"), {**when, **names})
        assert shown in text
        tab.confirm("Set the range")
        tab.close_dialog()
        assert peer_of(pair, "east-2")["range"]["bucket_encoded"] == typed.replace(" ", "%20")
    tab.act(row.get_by_role("button", name="Clear range"), "Clear the range")
    expect(row).to_contain_text("none")
    assert peer_of(pair, "east-2")["range"] is None


def test_checks_of_kind_auto_are_left_out(pair: Clusters, tab: BrowserPage) -> None:
    """A number of them on one node, shown in its row; 0 ends it."""
    row = tab.region("Full-sync west by node").get_by_role("row").filter(has_text="east-3")
    for number, sentence in (("3", "compare nothing"), ("0", "are due as planned")):
        text = tab.fill_in(button(tab, "Leave out auto"), {"On node": "east-3", "How many": number})
        assert sentence in text
        tab.confirm("Leave out")
        tab.close_dialog()
        assert peer_of(pair, "east-3")["auto_left_out"] == int(number)
        expect(row.get_by_role("cell").filter(has_text=re.compile(f"^{number}$"))).to_have_count(1)
