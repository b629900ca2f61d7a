"""The stream behind the pages: when it breaks, is refused, or cannot show the state, in a browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from playwright.sync_api import expect

from isthmus.repl.model.errors import NotReady
from tests.support.dashboard_browser import BrowserPage
from tests.support.threaded_node import ThreadedNode, running_node
from tests.system.fullsync.clusters import eventually

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(180)]

OpenPage = Callable[..., BrowserPage]

HIDDEN = """Object.defineProperty(document, "hidden", {{ configurable: true, get: () => {} }});
document.dispatchEvent(new Event("visibilitychange"));"""
"""A script that makes a page see its tab as hidden, or as visible again."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadedNode]:
    """A node in this process, so that a test reaches its streams."""
    with running_node(tmp_path_factory.mktemp("node")) as node:
        yield node


def admin_of(running: ThreadedNode) -> str:
    """The admin URL of the node."""
    return f"http://127.0.0.1:{running.admin}"


def opened(tab: BrowserPage) -> int:
    """How often a tab has opened the stream."""
    return sum("/admin/live" in each for each in tab.requests)


def test_a_stream_that_breaks_is_opened_again(running: ThreadedNode, open_page: OpenPage) -> None:
    """When the connection of the stream is cut the page reconnects by itself, is live again, and shows no error."""
    tab = open_page(admin_of(running), "overview")
    expect(tab.page.locator("#top")).to_contain_text("live")
    assert opened(tab) >= 1
    before = opened(tab)
    tab.allow("ERR_INCOMPLETE_CHUNKED_ENCODING|ERR_CONNECTION_RESET")
    assert running.node is not None
    live = running.node.admin_api.live

    def cut() -> None:
        for viewer in live._viewers:
            assert viewer._connection is not None
            viewer._connection.abort()

    running._loop.call_soon_threadsafe(cut)
    with tab.page.expect_event("request", lambda request: "/admin/live" in request.url):
        pass
    expect(tab.page.locator("#top")).to_contain_text("live")
    assert opened(tab) == before + 1
    assert tab.page.get_by_role("alert").count() == 0


def test_a_refused_stream_is_replaced_by_requests(
    running: ThreadedNode, open_page: OpenPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the node's limit of streams, one more page polls every 5 s, says so, and shows the same; while its tab is
    hidden it does not poll, and when it is visible again, it polls at once. A minute later, when a stream is free, it
    has a stream."""
    assert running.node is not None
    services, live = running.node.services, running.node.admin_api.live
    eventually(lambda: not live._viewers, "streams of tabs before have ended")
    listen = replace(services.settings.listen, live_streams_limit=1)
    monkeypatch.setattr(services, "settings", replace(services.settings, listen=listen))
    first = open_page(admin_of(running), "overview")
    expect(first.page.locator("#top")).to_contain_text("live")
    second = open_page(admin_of(running), None)
    second.allow("status of 503")
    second.page.clock.install()
    second.goto("overview")
    expect(second.page.locator("#top")).to_contain_text("every 5 s")
    expect(second.region("This cluster")).to_contain_text("1 of 1")
    second.page.evaluate(HIDDEN.format("true"))
    second.rendered()
    before = list(second.requests)
    second.page.clock.run_for(20_000)
    assert second.requests == before
    with second.page.expect_request("**/admin/cluster", timeout=4_000):
        second.page.evaluate(HIDDEN.format("false"))
    first.page.goto("about:blank")
    eventually(lambda: not live._viewers, "there is room")
    second.page.clock.fast_forward(61_000)
    expect(second.page.locator("#top")).to_contain_text("live")


def test_a_state_that_is_not_known_is_shown_as_unknown(
    running: ThreadedNode, open_page: OpenPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the node cannot report the cluster's state, the page shows it as unknown with the reason, not the old one;
    then it shows the state again."""
    tab = open_page(admin_of(running), "overview")
    cluster = tab.region("This cluster")
    expect(cluster).to_contain_text("Partitions online")
    assert running.node is not None
    api = running.node.admin_api

    async def unknown() -> dict[str, object]:
        raise NotReady("the <b>metastore</b> has not answered")

    with monkeypatch.context() as patched:
        patched.setattr(api, "cluster_document", unknown)
        patched.setitem(api.findings._documents, "cluster", unknown)
        expect(cluster).to_contain_text("the <b>metastore</b> has not answered")
        expect(cluster).to_contain_text("unknown")
        expect(cluster).not_to_contain_text("Partitions online")
        expect(tab.region("Alarms")).to_contain_text("has not answered")
    expect(cluster).to_contain_text("Partitions online")
    expect(tab.region("Alarms")).to_contain_text("no problems")
