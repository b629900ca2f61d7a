"""The dashboard during faults: dead nodes, cut links and full disks, in a browser, on real clusters."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import expect

from isthmus.node.local import directory as local_directory
from isthmus.node.local import supervisor_client
from isthmus.repl.replog.log import RESERVE_BYTES
from tests.support.dashboard_browser import BrowserPage
from tests.system.faults.campaign import DISK_MB
from tests.system.faults.disks import SmallDisk
from tests.system.fullsync.clusters import Clusters, eventually, http_request

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(300)]

OpenPage = Callable[..., BrowserPage]

GONE = re.compile("ERR_CONNECTION|ERR_INCOMPLETE|ERR_EMPTY|status of 50[03]")
"""Console errors of requests to a node that has stopped or just started."""

THREE = """\
[clusters.east.replication]
partitions = 3
balance = false
write_buffer_size = "4MB"
block_cache_size = "4MB"
[[clusters.east.nodes]]
name = "east-1"
[[clusters.east.nodes]]
name = "east-2"
[[clusters.east.nodes]]
name = "east-3"
"""


def whole(pair: Clusters, replicas: int = 18) -> None:
    """Wait until all nodes report all replicas of east in sync."""
    eventually(
        lambda: pair.admin("east-1", "/admin/cluster")["replicas"]["in_sync"] == replicas, "all replicas in sync", 150
    )


@contextmanager
def killed(pair: Clusters, *names: str) -> Iterator[None]:
    """Nodes that are killed for the block, and started again."""
    for name in names:
        local_directory.stop_node(pair.directory, name, kill=True)
    try:
        yield
    finally:
        for name in names:  # each may wait for another
            local_directory.start_node(pair.directory, name, None)
        whole(pair)


@contextmanager
def frozen(pair: Clusters, name: str) -> Iterator[None]:
    """A node that does nothing for the block, as if all its links were cut."""
    (pid,) = (
        node["pid"]
        for cluster in local_directory.status_of(pair.directory)["clusters"].values()
        for node in cluster["nodes"]
        if node["name"] == name
    )
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_killed_node_is_seen_at_a_glance(pair: Clusters, open_page: OpenPage) -> None:
    """Cluster shows the node as gone and the partitions that it is missing from; Overview has the alarm with the next
    step; Telemetry names the node whose numbers are missing, and shows later how many nodes each sum includes. After
    the node's return no alarm is left."""
    admin = pair.nodes["east-1"]["admin"]
    cluster, overview, telemetry = (open_page(admin, where) for where in ("cluster", "overview", "telemetry"))
    telemetry.choose("Over", "minutes")
    sums = telemetry.page.get_by_label("Nodes that answered, whose numbers are added up", exact=True).locator("p")
    expect(sums).to_have_text("Newest values: nodes: 4")
    held = [
        each["partition"]
        for each in pair.admin("east-1", "/admin/partitions")["partitions"]
        if "east-3" in each["replicas"]
    ]
    assert held, "east-3 has no replica whose loss could be shown"
    with killed(pair, "east-3"):
        row = cluster.region("Nodes of this cluster").get_by_role("row").filter(has_text="east-3")
        expect(row).to_contain_text("gone")
        expect(row).to_contain_text(f"0 of {len(held)}")
        expect(cluster.page.locator(".tile.warn")).to_have_count(len(held))
        expect(cluster.page.locator(".tile .cell.lagging")).to_have_count(len(held))
        cluster.page.get_by_label("only what is not in sync").check()
        expect(cluster.page.locator(".tile")).to_have_count(len(held))
        assert cluster.violations() == []
        alarms = overview.region("Alarms")
        expect(alarms).to_contain_text("node east-3 is gone")
        expect(alarms).to_contain_text("start the node; if it is lost for good: isthmus node drain")
        assert overview.violations() == []
        alarms.get_by_role("link", name="Cluster").first.click()
        expect(overview.page.locator("#main h1")).to_have_text("Cluster")
        expect(telemetry.page.locator("#main")).to_contain_text("east-3 did not answer")
        expect(sums).to_have_text("Newest values: nodes: 3")
    expect(row).to_contain_text("live")
    expect(cluster.region("Partitions")).to_contain_text("No partition is to be shown.")
    expect(sums).to_have_text("Newest values: nodes: 4")
    expect(telemetry.page.locator("#main")).not_to_contain_text("east-3 did not answer")


def test_the_node_behind_the_page_dies_and_returns(pair: Clusters, open_page: OpenPage) -> None:
    """The page shows that its node does not answer and the time of the displayed numbers, keeps them, and continues by
    itself when the node is back."""
    tab = open_page(pair.nodes["east-2"]["admin"], "overview")
    tab.allow(GONE.pattern)
    expect(tab.page.locator("#top")).to_contain_text("live")
    links = tab.region("Clusters and links")
    with killed(pair, "east-2"):
        expect(tab.page.locator("#top")).to_contain_text("no answer")
        expect(links).to_contain_text("this node cannot be reached")
        expect(links).to_contain_text("What is shown is of")
        expect(links.locator("svg.map")).to_be_visible()
    expect(tab.page.locator("#top")).to_contain_text("live", timeout=90_000)
    expect(links.get_by_role("alert")).to_have_count(0)


def test_a_cut_link_is_shown_with_its_backlog(pair: Clusters, open_page: OpenPage) -> None:
    """While the other cluster does not answer, the page shows its growing backlog and the backlog's age, no longer
    shows the links from it as running, and raises alarms for both; after the cut everything arrives."""
    pair.put("east", "b", "before", "v")
    eventually(lambda: pair.read("west", "b", "before"), "a write has crossed")
    tab = open_page(pair.nodes["east-1"]["admin"], "overview")
    drawn = tab.region("Clusters and links").locator("svg.map")
    expect(drawn).to_contain_text("0 s behind")
    with frozen(pair, "west-1"):
        for number in range(5):
            pair.put("east", "b", f"during {number}", "v")
        expect(drawn).to_contain_text(re.compile(r"to-west: \d[\d.]* s behind, 5 objects"))
        expect(drawn).to_contain_text(re.compile("to-east: [0-3] of 4 links running"), timeout=90_000)
        alarm = re.compile("fetches from west: [1-4] of 4 links fail")
        expect(tab.region("Alarms")).to_contain_text(alarm, timeout=90_000)  # a held fetch fails after 35 s
        expect(drawn).to_contain_text(re.compile(r"to-west: \d+ min \d+ s behind"), timeout=90_000)
        expect(tab.region("Alarms")).to_contain_text(re.compile(r"queue to-west, bucket type default: .* behind"))
    expect(tab.region("Alarms")).to_contain_text("no problems", timeout=120_000)
    expect(drawn).to_contain_text("to-west: 0 s behind, 0 objects")


def test_an_offline_partition_shows_what_it_waits_for(pair: Clusters, open_page: OpenPage) -> None:
    """With all other nodes killed the partitions are offline: the tiles and the alarm show it, and the remedy, which
    may lose data, is shown as a command to type."""
    tab = open_page(pair.nodes["east-1"]["admin"], "cluster")
    overview = open_page(pair.nodes["east-1"]["admin"], "overview")
    with killed(pair, "east-2", "east-3", "east-4"):
        offline = tab.page.locator(".tile.bad").filter(has_text=re.compile("!"))
        expect(offline.first).to_be_visible(timeout=90_000)
        eventually(
            lambda: any(
                each["status"] == "offline" for each in pair.admin("east-1", "/admin/partitions")["partitions"]
            ),
            "a partition is offline",
            90,
        )
        partition = next(
            each["partition"]
            for each in pair.admin("east-1", "/admin/partitions")["partitions"]
            if each["status"] == "offline"
        )
        tab.page.locator(f"[data-key='partition {partition}']").click()
        shown = tab.region(f"Partition {partition}")
        expect(shown).to_contain_text("offline")
        expect(shown.locator(".command code").first).to_have_text(
            re.compile(rf"isthmus partition force-leader {partition} east-\d --dry-run")
        )
        expect(overview.region("Alarms")).to_contain_text("partitions are not online")
        expect(overview.region("Alarms")).to_contain_text("start the replicas that it waits for")
    expect(overview.region("Alarms")).to_contain_text("no problems", timeout=90_000)


@pytest.mark.root
@pytest.mark.disks
def test_a_full_disk_is_an_alarm_with_the_node(tmp_path: Path, open_page: OpenPage) -> None:
    """A node whose disk is full is named with that reason and the runbook; Cluster shows how little is free; after
    space is freed the alarm ends."""
    directory = tmp_path / "clusters"
    with SmallDisk(tmp_path / "disk", DISK_MB) as disk:
        (disk.path / "data").mkdir()
        (directory / "east-3").mkdir(parents=True)
        (directory / "east-3" / "data").symlink_to(disk.path / "data")
        try:
            clusters = Clusters(directory, THREE)
            admin = clusters.nodes["east-1"]["admin"]
            overview, cluster = open_page(admin, "overview"), open_page(admin, "cluster")
            disk.fill(RESERVE_BYTES * 3 // 4)  # with no space at all a node stops (docs/runbooks.md)
            for number in range(400):
                url = f"{clusters.nodes['east-1']['http']}/buckets/b/keys/{number}"
                http_request(url, "PUT", bytes(20_000), Content_Type="application/octet-stream")
            alarms = overview.region("Alarms")
            expect(alarms).to_contain_text(re.compile("node east-3, .*: out-of-storage"), timeout=60_000)
            expect(alarms).to_contain_text("make room on that disk, or move replicas away")
            row = cluster.region("Nodes of this cluster").get_by_role("row").filter(has_text="east-3")
            expect(row.get_by_text(re.compile(r"^[▲■] .*\(\d"))).to_have_class(re.compile("warn|bad"), timeout=60_000)
            disk.free()
            expect(alarms).to_contain_text("no problems", timeout=120_000)
            for tab in (overview, cluster):
                tab.page.goto("about:blank")  # they would send requests to stopped nodes
        finally:
            supervisor_client.stop(directory)
