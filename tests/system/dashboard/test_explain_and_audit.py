"""The pages Explain a key and Audit, in a browser, on real clusters."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.support.dashboard_browser import BrowserPage
from tests.system.fullsync.clusters import Clusters, eventually

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(180)]

OpenPage = Callable[..., BrowserPage]

HTML = "<img src=x onerror=alert(1)>&amp;"
"""A name that must never become HTML."""

ACTS = 60
"""More acts than a page of the audit log shows."""


def explain(tab: BrowserPage, bucket: str, key: str, typed_as: str = "text") -> None:
    """Enter a key and explain it."""
    tab.page.get_by_label("Bucket", exact=True).fill(bucket)
    tab.page.get_by_label("Key", exact=True).fill(key)
    tab.choose("Typed as", typed_as)
    tab.page.get_by_role("button", name="Explain", exact=True).click()
    tab.rendered()


def test_a_key_is_explained(pair: Clusters, open_page: OpenPage) -> None:
    """Explain shows where a write was accepted, its state in the queue, and the other side's object; the key's name is
    shown as text, and a reload of the address repeats the query."""
    pair.put("east", HTML, HTML, "v")
    eventually(lambda: pair.read("west", HTML, HTML), "it has crossed")
    tab = open_page(pair.nodes["east-2"]["admin"], "explain")
    explain(tab, HTML, HTML)
    expect(tab.region("Verdict")).to_contain_text("an object here")
    expect(tab.region("Verdict")).to_contain_text("queue to-west: acknowledged")
    expect(tab.region("Other sides")).to_contain_text("It has the same as this side.")
    expect(tab.region("This side").locator("dd code")).to_have_text([HTML, HTML])  # bucket and key
    assert tab.violations() == []
    tab.page.reload()
    tab.rendered()
    expect(tab.region("Verdict")).to_contain_text("an object here")
    expect(tab.page.get_by_label("Key", exact=True)).to_have_value(HTML)


def test_names_that_are_no_text_and_keys_that_are_not_there(pair: Clusters, open_page: OpenPage) -> None:
    """A key may be typed in hexadecimal; a key that was never written is reported as such; invalid digits are refused
    with the right format, and an unknown bucket type is refused by the node."""
    tab = open_page(pair.nodes["east-1"]["admin"], "explain")
    explain(tab, "ff00", "c0 af", "hex")
    expect(tab.region("This side")).to_contain_text("never written, or deleted and reaped")
    expect(tab.region("This side")).to_contain_text("%C0%AF")
    explain(tab, "xyz", "c0", "hex")
    expect(tab.page.get_by_role("alert")).to_contain_text("two hexadecimal digits for each byte are right")
    tab.allow("status of 404")
    tab.page.get_by_label("Bucket type").fill("defualt")
    explain(tab, "b", "k")
    expect(tab.page.get_by_role("alert")).to_contain_text("defualt")


def test_acts_are_found_and_paged(pair: Clusters, open_page: OpenPage) -> None:
    """Acts of all nodes, the newest first; filtered by person, object and outcome, with the state before and after;
    older ones are on further pages, and the address keeps the filters."""
    option = "placement.moves.at.once"
    for number in range(ACTS):
        node = f"east-{1 + number % 4}"
        pair.admin(node, f"/admin/options/{option}/set", {"value": 5 + number, "by": HTML, "reason": f"nr {number}"})
    pair.admin("east-1", f"/admin/options/{option}/unset", {"by": "Ada"})
    tab = open_page(pair.nodes["east-3"]["admin"], "audit")
    acts = tab.region("Acts").locator("ol.acts > li")
    expect(acts).to_have_count(50)
    expect(acts.first).to_contain_text("Ada")
    newest = acts.first.inner_text()
    tab.page.get_by_role("button", name="Older").first.click()
    expect(acts.first).not_to_have_text(newest)
    expect(tab.region("Acts")).to_contain_text("older ones")
    tab.page.get_by_role("button", name="Newest").first.click()
    expect(acts.first).to_contain_text("Ada")

    tab.page.get_by_label("Person").fill(HTML)
    tab.page.get_by_label("Object").fill(option)
    tab.page.get_by_role("button", name="Find", exact=True).click()
    expect(acts.first).to_contain_text(HTML)
    expect(tab.region("Acts")).not_to_contain_text("Ada")
    acts.first.locator("summary").click()
    expect(acts.first).to_contain_text(f"nr {ACTS - 1}")
    expect(acts.first).to_contain_text(str(5 + ACTS - 1))
    expect(acts.first).to_contain_text(str(5 + ACTS - 2))
    assert tab.violations() == []
    assert "who=" in tab.page.url
    tab.page.reload()
    tab.rendered()
    expect(acts.first).to_contain_text(HTML)
    tab.choose("Outcome", "refused")
    tab.page.get_by_role("button", name="Find", exact=True).click()
    expect(tab.region("Acts")).to_contain_text("No act fits.")
    tab.page.get_by_role("button", name="Clear").click()
    expect(acts).to_have_count(50)


def test_a_refused_act_is_there_with_its_reason(pair: Clusters, open_page: OpenPage) -> None:
    """An act that the node refused is in the audit log, too: refused, with the reason."""
    tab = open_page(pair.nodes["east-1"]["admin"], "cluster")
    tab.allow("status of 409")
    row = tab.region("Nodes of this cluster").get_by_role("row").filter(has_text="east-4")
    tab.ask(row.get_by_role("button", name="Drain"))
    pair.admin("east-2", "/admin/nodes/drain", {"nodes": ["east-4"]})
    tab.confirm("Drain", by="Bob")
    tab.close_dialog()
    pair.admin("east-2", "/admin/nodes/drain", {"nodes": ["east-4"], "undo": True})
    tab.page.goto(f"{tab.admin}/#/audit?who=Bob")
    tab.rendered()
    act = tab.region("Acts").locator("ol.acts > li").first
    expect(act).to_contain_text("refused")
    act.locator("summary").click()
    expect(act).to_contain_text("the cluster has changed since the plan was shown")
    expect(act).to_contain_text("a dashboard")
