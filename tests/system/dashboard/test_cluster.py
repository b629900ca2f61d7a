"""Acts on the page Cluster, in a browser: from the button to the effect on real clusters."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from isthmus.node.local import directory as local_directory
from tests.support.dashboard_browser import BrowserPage
from tests.system.fullsync.clusters import Clusters, eventually

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(180)]

OpenPage = Callable[..., BrowserPage]

NAME = "<b onclick=alert(1)>Ada & Bob</b>"
"""The acting user's name: a text that must never become HTML."""


@pytest.fixture
def tab(pair: Clusters, open_page: OpenPage) -> BrowserPage:
    """The page Cluster of east-1."""
    return open_page(pair.nodes["east-1"]["admin"], "cluster")


@pytest.fixture
def held_moves(pair: Clusters) -> Iterator[None]:
    """Prevent changes of replicas meanwhile, so that orders stay pending."""
    path = "/admin/options/placement.moves.at.once/"
    pair.admin("east-1", path + "set", {"value": 0})
    yield
    pair.admin("east-1", path + "unset", {})


def node_row(tab: BrowserPage, node: str) -> Locator:
    """The row of a node."""
    return tab.region("Nodes of this cluster").get_by_role("row").filter(has_text=node)


def button(within: Locator, name: str) -> Locator:
    """A button by its full name."""
    return within.get_by_role("button", name=name, exact=True)


def node_of(pair: Clusters, name: str) -> dict[str, Any]:
    """A node as the API shows it."""
    (found,) = (each for each in pair.admin("east-1", "/admin/nodes")["nodes"] if each["name"] == name)
    return dict(found)


def test_nodes_are_shown_also_where_no_finding_is_answered(pair: Clusters, open_page: OpenPage) -> None:
    """How much is free of their disks is shown, and that it is not known whether that is little."""
    tab = open_page(pair.nodes["east-1"]["admin"], None)
    tab.page.route("**/admin/findings", lambda route: route.fulfill(status=503, json={"error": "busy"}))
    tab.allow("status of 503")
    tab.goto("cluster")
    for node in ("east-1", "east-2", "east-3"):
        expect(node_row(tab, node).locator("b.unknown")).to_contain_text("○ ")


def still(pair: Clusters) -> None:
    """Wait until nothing moves in east."""
    eventually(lambda: not pair.admin("east-1", "/admin/moves")["orders"], "all moves have ended")


def acts_of(pair: Clusters, node: str) -> list[dict[str, Any]]:
    """The acts in a node's audit log, the newest first."""
    return list(pair.admin(node, "/admin/audit?limit=20")["acts"])


def test_a_node_is_drained_and_taken_back(pair: Clusters, tab: BrowserPage) -> None:
    """The dialog shows the planned moves and asks for confirmation. Afterwards the replicas are elsewhere, the order
    has ended, the audit log has the operator and the reason, and the drain can be undone."""
    assert node_of(pair, "east-4")["replicas"] > 0
    row = node_row(tab, "east-4")
    text = tab.ask(button(row, "Drain"))
    assert "Drain node east-4?" in text
    assert "All replicas of east-4 move to other nodes" in text
    assert re.search(r"east-4\s+\d+\s+0", text), text
    assert not node_of(pair, "east-4")["drained"]
    result = tab.confirm("Drain", by=NAME, reason="a new <i>disk</i>")
    assert re.search(r"Order \d+ is under way; see Moves", result), result
    tab.close_dialog()
    expect(row).to_contain_text("drained")
    still(pair)
    eventually(lambda: node_of(pair, "east-4")["replicas"] == 0, "east-4 holds nothing")
    expect(row).to_contain_text("0 of 0")
    ended = tab.page.locator("details[data-key='ended moves']")
    ended.locator("summary").click()
    expect(ended).to_contain_text(NAME)
    (act,) = (each for each in acts_of(pair, "east-1") if each["what"]["route"] == "POST /admin/nodes/drain")
    assert (act["who"]["by"], act["reason"], act["via"]) == (NAME, "a new <i>disk</i>", "dashboard")

    text = tab.ask(button(row, "Undo drain"))
    assert "Node east-4 may be given replicas again" in text
    tab.confirm("Undo the drain")
    tab.close_dialog()
    expect(button(row, "Undo drain")).to_have_count(0)
    assert not node_of(pair, "east-4")["drained"]


def test_replicas_are_spread(pair: Clusters, tab: BrowserPage) -> None:
    """After the drain the nodes are uneven: the act moves replicas to the empty one, and then there is nothing more to
    move."""
    moves = tab.region("Moves")
    text = tab.ask(button(moves, "Spread evenly"))
    assert "Spread replicas evenly over the nodes?" in text
    assert re.search(r"east-4\s+0\s+[1-9]", text), text
    tab.confirm("Spread")
    tab.close_dialog()
    still(pair)
    assert node_of(pair, "east-4")["replicas"] > 0
    assert "No replica has to move." in tab.ask(button(moves, "Spread evenly"))
    assert button(tab.dialog, "Spread").count() == 0
    tab.close_dialog()


def test_an_order_shows_its_progress_and_is_cancelled(pair: Clusters, tab: BrowserPage, held_moves: None) -> None:
    """An order that cannot begin shows why, who submitted it, and its progress; after its cancellation it has ended,
    and no replica has moved."""
    before = node_of(pair, "east-2")
    tab.act(button(node_row(tab, "east-2"), "Drain"), "Drain", by=NAME)
    moves = tab.region("Moves")
    expect(moves).to_contain_text("Nothing new is begun")
    expect(moves).to_contain_text("0 of")
    expect(moves).to_contain_text(NAME)
    expect(moves.get_by_role("progressbar")).to_have_count(1)
    text = tab.ask(button(moves, "Cancel"))
    assert "moves under way are reverted" in text
    tab.confirm("Cancel the order")
    tab.close_dialog()
    expect(moves).to_contain_text("No order is under way.")
    assert node_of(pair, "east-2")["replicas"] == before["replicas"]
    tab.act(button(node_row(tab, "east-2"), "Undo drain"), "Undo the drain")


def test_a_plan_that_is_old_by_now_is_refused(pair: Clusters, tab: BrowserPage, held_moves: None) -> None:
    """When another operator orders moves while the dialog is open, the shown plan is refused with that reason, and the
    dialog's only button is its close button."""
    tab.allow("status of 409")
    tab.ask(button(node_row(tab, "east-2"), "Drain"))
    pair.admin("east-2", "/admin/nodes/drain", {"nodes": ["east-2"]})
    result = tab.confirm("Drain")
    assert "the cluster has changed since the plan was shown" in result, result
    tab.close_dialog()
    assert len(pair.admin("east-1", "/admin/moves")["orders"]) == 1
    tab.act(button(node_row(tab, "east-2"), "Undo drain"), "Undo the drain")
    still(pair)


def test_a_change_whose_answer_is_lost_is_not_called_done(pair: Clusters, tab: BrowserPage) -> None:
    """When the connection breaks during a change, the page shows that it is unknown whether the change was made."""
    tab.allow("ERR_FAILED|ERR_CONNECTION")
    tab.ask(button(tab.region("Moves"), "Spread evenly"))
    tab.close_dialog()
    tab.ask(button(node_row(tab, "east-3"), "Drain"))
    tab.page.route("**/admin/nodes/drain", lambda route: route.abort("failed"))
    result = tab.confirm("Drain")
    assert "whether the change was made is not known" in result
    assert "Done." not in result
    tab.close_dialog()
    assert not node_of(pair, "east-3")["drained"]


def test_partitions_show_what_is_in_sync_and_where(pair: Clusters, tab: BrowserPage) -> None:
    """Every partition is a tile with its replicas; one that is chosen shows its positions, and stays in the address."""
    partitions = pair.admin("east-1", "/admin/partitions")["partitions"]
    tiles = tab.page.locator(".tile")
    expect(tiles).to_have_count(len(partitions))
    assert tab.page.locator(".tile .leader").count() == len(partitions)
    tab.page.get_by_label("only what is not in sync").check()
    expect(tab.region("Partitions")).to_contain_text("No partition is to be shown.")
    tab.page.get_by_label("only what is not in sync").uncheck()
    chosen = partitions[2]
    tiles.nth(2).click()
    shown = tab.region(f"Partition {chosen['partition']}")
    for replica in chosen["replicas"]:
        expect(shown).to_contain_text(replica)
    expect(shown).to_contain_text(f"min-ISR {chosen['min_isr']}")
    assert f"partition={chosen['partition']}" in tab.page.url
    tab.choose("Bucket type", "default")
    assert "type=default" in tab.page.url


def test_acts_that_may_lose_data_are_commands_to_type(tab: BrowserPage) -> None:
    """The page shows force-leader and reseed as commands with `--dry-run`, without buttons."""
    tab.page.get_by_text("Acts that may lose data").click()
    commands = tab.page.locator(".command code").all_inner_texts()
    assert commands == [
        "isthmus partition force-leader PARTITION NODE --dry-run",
        "isthmus cluster reseed --dry-run",
    ]
    tab.page.get_by_role("button", name="Copy").first.click()
    expect(tab.page.locator(".copied").first).to_have_text(re.compile("copied|select it to copy"))


def test_leaders_are_balanced(pair: Clusters, tab: BrowserPage) -> None:
    """After a node was away, others lead its partitions: the act shows the moves, asks for confirmation, and moves them
    back."""
    local_directory.restart_node(pair.directory, "east-2", 90)
    leads = lambda: node_of(pair, "east-2")["leaders"]  # noqa: E731
    assert leads() == 0
    leaders = tab.region("Leaders")
    expect(leaders).to_contain_text("no")  # the cluster does not balance by itself here
    eventually(lambda: pair.admin("east-1", "/admin/leaders")["plan"], "there is something to move")
    text = tab.ask(button(leaders, "Balance now"))
    assert "Each partition answers no write for some tenths of a second" in text
    assert "east-2" in text
    result = tab.confirm("Balance", by=NAME)
    assert "The moves have begun" in result
    tab.close_dialog()
    eventually(lambda: leads() > 0, "east-2 leads again")
    expect(leaders).to_contain_text(f"Newest run, by {NAME}: ")
    expect(node_row(tab, "east-2").get_by_role("cell").nth(2)).to_have_text(str(leads()))


def test_a_node_that_is_gone_and_empty_is_removed(pair: Clusters, tab: BrowserPage) -> None:
    """A drained node that was stopped has another act: removed, it is in the list no more."""
    tab.act(button(node_row(tab, "east-4"), "Drain"), "Drain")
    still(pair)
    local_directory.stop_node(pair.directory, "east-4")
    row = node_row(tab, "east-4")
    expect(row).to_contain_text("gone")
    time.sleep(1)
    text = tab.ask(button(row, "Remove"))
    assert "The cluster forgets node east-4" in text
    tab.confirm("Remove")
    tab.close_dialog()
    expect(row).to_have_count(0)
    names = [each["name"] for each in pair.admin("east-1", "/admin/nodes")["nodes"]]
    assert names == ["east-1", "east-2", "east-3"]
