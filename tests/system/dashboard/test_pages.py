"""Claims about every page of the dashboard, in a browser, on a pair of real clusters."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from isthmus.node.dashboard.routes import CONTENT_SECURITY_POLICY
from tests.support.dashboard_browser import PAGES, WIDTHS, BrowserPage
from tests.system.fullsync.clusters import Clusters, eventually

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

OpenPage = Callable[..., BrowserPage]

HTML = "<img src=x onerror=\"document.title='script'\"><b>bold</b>&amp;"


@pytest.fixture
def admin(pair: Clusters) -> str:
    """The admin URL of the node that is looked at."""
    found: str = pair.nodes["east-1"]["admin"]
    return found


def test_every_page_has_a_test_by_its_id(admin: str, open_page: OpenPage) -> None:
    """The navigation has the pages that these tests go through, and the address leads to each of them."""
    tab = open_page(admin, "")
    links = tab.page.locator("#nav a")
    assert sorted(filter(None, (each.get_attribute("data-page") for each in links.all()))) == PAGES
    for link in links.all():
        link.click()
        tab.rendered()
        expect(link).to_have_attribute("aria-current", "page")
        expect(tab.page.locator("#main h1")).to_have_text(link.inner_text())
        expect(tab.page.locator("#main h1")).to_be_focused()
        expect(tab.page).to_have_title(f"{link.inner_text()} · Isthmus")


@pytest.mark.parametrize("page_id", PAGES)
def test_a_page_shows_all_it_has_without_an_error(admin: str, open_page: OpenPage, page_id: str) -> None:
    """Loaded by its address the page shows no alert, logs no error on the console, and sends requests to its node
    alone."""
    tab = open_page(admin, page_id)
    expect(tab.page.locator("#top")).to_contain_text("live")
    assert tab.page.locator("#main [role=alert]").all_inner_texts() == []
    tab.page.reload()
    tab.rendered()
    assert tab.page.url.endswith(f"#/{page_id}")


@pytest.mark.parametrize("page_id", PAGES)
def test_a_page_is_for_readers_of_all_kinds(admin: str, open_page: OpenPage, page_id: str) -> None:
    """In both themes and at three widths the page needs no horizontal scrolling, and axe-core finds no serious
    violation."""
    tab = open_page(admin, page_id)
    problems: dict[str, list[str]] = {}
    for theme in ("light", "dark"):
        tab.theme(theme)  # type: ignore[arg-type]
        for width in WIDTHS:
            tab.resize(width)
            if not tab.comes_to_fit():
                problems[f"{theme}, {width} px"] = ["it needs scrolling sideways"]
        tab.resize(WIDTHS[0] if theme == "dark" else WIDTHS[-1])
        problems[f"{theme}, axe-core"] = tab.violations()
    assert {where: found for where, found in problems.items() if found} == {}


def test_an_unknown_page_says_so(admin: str, open_page: OpenPage) -> None:
    """An address of an older version, or a wrong one, leads to a sentence and not to an empty page."""
    tab = open_page(admin, "nothing<b>")
    expect(tab.page.locator("#main")).to_contain_text("There is no page nothing")


def test_a_theme_and_utc_are_remembered(admin: str, open_page: OpenPage) -> None:
    """Theme and UTC survive a reload, and displayed times change at once."""
    tab = open_page(admin, "overview", locale="en-GB")
    background = "getComputedStyle(document.body).backgroundColor"
    light = tab.page.evaluate(background)
    tab.theme("dark")
    assert tab.page.evaluate(background) != light
    tab.page.get_by_label("UTC").check()
    since = tab.region("This cluster").locator("time").first
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", since.inner_text())
    tab.page.reload()
    tab.rendered()
    assert tab.page.evaluate(background) != light
    assert since.inner_text().endswith("Z")


def test_the_keyboard_alone_reaches_and_performs_an_act(pair: Clusters, admin: str, open_page: OpenPage) -> None:
    """The keyboard reaches, from the start of a page, the skip link, the partitions by arrow keys, an act's dialog, its
    confirmation, and the button again; Escape leaves a dialog and changes nothing."""
    tab = open_page(admin, "cluster")
    page, keys = tab.page, tab.page.keyboard
    keys.press("Tab")
    assert tab.focused() == "Skip to the page"
    keys.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    assert page.url.endswith("#/cluster")
    tab.tab_to(lambda: tab.focused() == "Balance now")
    keys.press("Enter")
    expect(tab.dialog).to_contain_text("Balance leaders?")
    expect(tab.dialog).to_contain_text("Leaders are balanced")
    keys.press("Escape")
    expect(tab.dialog).to_have_count(0)
    assert tab.focused() == "Balance now"
    tab.tab_to(lambda: tab.focused().startswith("partition 0 "))
    keys.press("ArrowRight")
    assert tab.focused().startswith("partition 1 ")
    keys.press("Enter")
    expect(tab.region("Partition 1")).to_contain_text("min-ISR 2")
    page.reload()
    tab.rendered()
    expect(tab.region("Partition 1")).to_be_visible()

    drained = next(name for name in ("east-2", "east-3", "east-4"))
    tab.tab_to(lambda: page.evaluate("document.activeElement.dataset.key") == f"drain {drained}")
    keys.press("Enter")
    expect(tab.dialog).to_contain_text(f"All replicas of {drained} move to other nodes")
    tab.tab_to(lambda: page.evaluate("document.activeElement.name") == "reason")
    keys.type("by keyboard")
    tab.tab_to(lambda: tab.focused() == "Drain")
    keys.press("Enter")
    expect(tab.dialog).to_contain_text("Done.")
    assert tab.focused() == "Close"
    keys.press("Enter")
    expect(tab.dialog).to_have_count(0)
    (row,) = (each for each in pair.admin("east-1", "/admin/nodes")["nodes"] if each["name"] == drained)
    assert row["drained"]
    pair.admin("east-1", "/admin/nodes/drain", {"nodes": [drained], "undo": True})
    settled(pair)


def test_what_a_reader_does_outlasts_new_numbers(admin: str, open_page: OpenPage) -> None:
    """A table that is reloaded keeps its scroll position and the focus, and open details stay open."""
    tab = open_page(admin, "cluster", width=360)
    rows = tab.region("Nodes of this cluster")
    rows.focus()
    rows.evaluate("(box) => { box.scrollLeft = 120; box.firstElementChild.dataset.old = 'yes'; }")
    expect(rows.locator("[data-old]")).to_have_count(0)
    assert rows.evaluate("(box) => [box.scrollLeft, box === document.activeElement]") == [120, True]


def settled(pair: Clusters) -> None:
    """Wait until nothing of east moves."""
    eventually(lambda: not pair.admin("east-1", "/admin/moves")["orders"], "all moves have ended")


def answer(admin: str, method: str, path: str, headers: dict[str, str]) -> tuple[int, http.client.HTTPMessage, bytes]:
    """Send one request with headers that a browser would set by itself."""
    connection = http.client.HTTPConnection(urlsplit(admin).netloc, timeout=30)
    try:
        body = "{}" if method == "POST" else None
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()


def test_a_page_of_another_place_can_neither_frame_nor_act(admin: str, pair: Clusters, open_page: OpenPage) -> None:
    """Another origin, here the dashboard of another node, cannot show this one in a frame, read its answers, or send it
    a change: the browser refuses the first two, the node the third."""
    _, headers, _ = answer(admin, "GET", "/", {})
    assert headers["content-security-policy"].encode() == CONTENT_SECURITY_POLICY
    assert headers["x-frame-options"] == "DENY"
    status, _, body = answer(admin, "POST", "/admin/leaders/balance", {"Origin": pair.nodes["west-1"]["admin"]})
    assert (status, json.loads(body)["reason"]) == (403, "other-origin")

    tab = open_page(pair.nodes["west-1"]["http"] + "/ping", None, bypass_csp=True)
    tab.admin = pair.nodes["west-1"]["http"]
    tab.allow("request to another place|console, error")
    tab.page.goto(tab.admin + "/ping")
    tried = """async (admin) => {
        const frame = document.createElement("iframe");
        frame.src = admin;
        document.body.append(frame);
        await new Promise((done) => frame.addEventListener("load", done));
        const outcomes = [frame.contentDocument === null ? "hidden" : "readable"];
        for (const init of [{}, {method: "POST", body: "{}"}, {method: "POST", body: "{}", mode: "no-cors"}]) {
            await fetch(admin + "/admin/leaders/balance", init).then(
                (response) => outcomes.push(response.type), () => outcomes.push("refused"));
        }
        return outcomes;
    }"""
    assert tab.page.evaluate(tried, admin) == ["hidden", "refused", "refused", "opaque"]
    (frame,) = tab.page.frames[1:]
    assert frame.url.startswith("chrome-error:")
    assert pair.admin("east-1", "/admin/leaders")["run"] is None


def test_nothing_of_a_page_runs_that_is_not_the_nodes_own(admin: str, open_page: OpenPage) -> None:
    """The browser refuses inline scripts and styles, text that becomes HTML, and requests elsewhere, also to a script
    that had got into the page."""
    tab = open_page(admin, "overview")
    tab.allow("Content Security Policy|Trusted(HTML|Script)|another place")
    outcomes: dict[str, Any] = tab.page.evaluate(
        """async (other) => {
        const tried = {};
        const attempt = async (name, act) => {
            try { tried[name] = String(await act()); } catch (error) { tried[name] = error.name; }
        };
        const script = document.createElement("script");
        script.append("window.inline = true");
        await attempt("inline script", () => { document.head.append(script); return window.inline; });
        await attempt("html", () => { document.querySelector("#main").innerHTML = "<b>x</b>"; });
        await attempt("fetch elsewhere", () => fetch(other));
        await attempt("image elsewhere", () => new Promise((done) => {
            const image = new Image();
            image.onload = () => done("loaded");
            image.onerror = () => done("refused");
            image.src = other + "/dashboard/css/icon.svg";
        }));
        return tried;
    }""",
        admin.replace("127.0.0.1", "127.0.0.2"),
    )
    assert outcomes == {
        "inline script": "undefined", "html": "TypeError", "fetch elsewhere": "TypeError",
        "image elsewhere": "refused",
    }  # fmt: skip
