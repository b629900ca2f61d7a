"""Pictures of the dashboard for docs/dashboard.md: `make screenshots`.

Two clusters run on this machine with writes both ways, and are compared; then a browser (Debian's package chromium)
opens each page. Takes about three minutes, and leaves nothing but the pictures. Look at them before they are committed.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import requests
from playwright.sync_api import sync_playwright

from isthmus.node.local.clusters import LocalClusters
from isthmus.node.local.topology import parse_topology
from tests.support.dashboard_browser import ARGUMENTS, BrowserPage

IMAGES: Final = Path(__file__).parent / "images"

WIDTH: Final = 1120
"""Width of the window: readable where a page of documents shows the picture at two thirds of its size."""

SIZE_BYTES_MAX: Final = 200_000
"""A picture that is larger would make every checkout slower; take less of the page."""

WRITING_S: Final = 120.0
"""Long enough for charts of ten minutes to have something to show."""

TOPOLOGY: Final = """\
[clusters.east.replication]
partitions = 24
[[clusters.east.nodes]]
name = "east-1"
rack = "a"
[[clusters.east.nodes]]
name = "east-2"
rack = "b"
[[clusters.east.nodes]]
name = "east-3"
rack = "c"
[[clusters.east.queues]]
name = "to-west"
[[clusters.east.sink.peers]]
cluster = "west"
queue = "to-east"
[[clusters.east.fullsync]]
cluster = "west"
queue = "to-west"
pause = "2s"
[clusters.west.replication]
partitions = 12
[[clusters.west.nodes]]
name = "west-1"
[[clusters.west.nodes]]
name = "west-2"
[[clusters.west.queues]]
name = "to-east"
[[clusters.west.sink.peers]]
cluster = "east"
queue = "to-west"
"""


class Picture(NamedTuple):
    """A picture: the page by its address, and the height of the part that is shown."""

    name: str
    where: str
    height: int


PICTURES: Final = (
    Picture("overview", "overview", 760),
    Picture("cluster", "cluster", 1_000),
    Picture("telemetry", "telemetry?range=minutes", 1_000),
)


def main() -> None:
    """Make all pictures, or those that are named."""
    wanted = set(sys.argv[1:]) or {picture.name for picture in PICTURES}
    unknown = wanted - {picture.name for picture in PICTURES}
    if unknown:
        sys.exit(f"no such picture: {', '.join(sorted(unknown))}; there are {', '.join(p.name for p in PICTURES)}")
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("chromium is missing: install the package of this name")
    with tempfile.TemporaryDirectory(prefix="isthmus-screenshots-") as directory:
        topology = parse_topology(TOPOLOGY, Path("screenshots.toml"))
        with LocalClusters(topology, Path(directory), owned=True) as local:
            found = local.up()["clusters"]
            urls = {node["name"]: node for cluster in found.values() for node in cluster["nodes"]}
            with _writes(urls["east-1"]["http"], 60), _writes(urls["west-1"]["http"], 15):
                time.sleep(WRITING_S / 2)
                _compare(urls["east-1"]["admin"])
                time.sleep(WRITING_S / 2)
                _take(urls["east-1"]["admin"], chromium, wanted)


def _take(admin: str, chromium: str, wanted: set[str]) -> None:
    IMAGES.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        for picture in PICTURES:
            if picture.name not in wanted:
                continue
            tab = BrowserPage(browser, admin, width=WIDTH)
            tab.page.set_viewport_size({"width": WIDTH, "height": picture.height})
            tab.goto(picture.where)
            tab.page.wait_for_timeout(5_000)  # the stream has brought two samples
            body = tab.page.screenshot()
            tab.close()
            if len(body) > SIZE_BYTES_MAX:
                sys.exit(f"{picture.name} has {len(body)} bytes; at most {SIZE_BYTES_MAX} are right")
            (IMAGES / f"{picture.name}.png").write_bytes(body)
            print(f"docs/images/{picture.name}.png: {len(body):,} bytes")
        browser.close()


def _compare(admin: str) -> None:
    """One full-sync, so that there is something proven."""
    (peer,) = requests.get(f"{admin}/admin/fullsync", timeout=30).json()["peers"]
    body = {"peer": peer["name"], "kind": "all", "by": "operator@example"}
    requests.post(f"{admin}/admin/fullsync/run", json=body, timeout=30).raise_for_status()


@contextmanager
def _writes(url: str, rate: float) -> Iterator[None]:
    """Objects of all sizes at about this rate a second, while the context is open. Exits the program at its end when a
    write failed: the pictures would show a cluster without load."""
    stopping = threading.Event()
    chance = random.Random(rate)  # noqa: S311 - load, no secrets

    failures: list[requests.RequestException] = []

    def run() -> None:
        try:
            write()
        except requests.RequestException as error:
            failures.append(error)

    def write() -> None:
        with requests.Session() as session:
            number = 0
            while not stopping.wait(chance.expovariate(rate * (0.6 + 0.4 * (time.time() % 60 > 30)))):
                number += 1
                body = chance.randbytes(chance.choice((200, 1_000, 4_000)))
                path = f"/buckets/towns/keys/{number}"
                headers = {"Content-Type": "application/octet-stream"}
                session.put(url + path, data=body, headers=headers, timeout=30).raise_for_status()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
    if failures:
        sys.exit(f"writes to {url} ended: {failures[0]}")


if __name__ == "__main__":
    main()
