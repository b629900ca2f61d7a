"""The findings of the cluster as a metric, by code, severity and subject: the list of `isthmus status`, when scraped.

A finding needs the answers of all nodes, so it is the cluster's and no node's. The first REPORTERS nodes by name judge
for all: however large the cluster, a round of scrapes costs no more than two open dashboards, and a node that hangs
leaves another one that reports. The others have no samples of it. Whether a node is a reporter is a metric, too: no
finding and no reporter look alike otherwise.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from typing import Any, Final

from isthmus.node.services.finding_codes import Code
from isthmus.repl.model.errors import IsthmusError
from isthmus.repl.telemetry import Family, Sample
from isthmus.repl.unforeseen import unforeseen

REPORTERS: Final = 2
"""Nodes that judge. A node that is down takes part no more once its session is over, and the next one by name does."""

WAIT_S: Final = 4.0
"""How long a scrape waits for the answers of all nodes, which are given 2 s each; Prometheus waits for 10 s."""

SERIES_MAX: Final = 200
"""Most series: the worst findings come first, and the rest is counted under REST. Far more than an operator reads."""

REST: Final = "others"
"""The subject of findings beyond SERIES_MAX."""

HELP: Final[Mapping[str, Family]] = {
    "isthmus_findings": Family(
        "Open findings of the cluster, as in `isthmus status`, by code, severity (critical, warning, unknown) and "
        "subject. The first two registered nodes by name report them for all, and a node that knows itself not to be "
        "registered what it sees; without findings there are no samples.",
        "findings",
        "findings",
        ("code", "severity", "subject"),
    ),
    "isthmus_findings_reporter": Family(
        "1 at a node that reports isthmus_findings, else 0. Where Prometheus scrapes no node that has 1, it has no "
        "findings of the cluster.",
        "0 or 1",
        "findings",
    ),
}
"""Name -> metric definition (see repl.telemetry)."""

Key = tuple[str, str, str]
"""(code, severity, subject)."""


class FindingMetrics:
    """Counts the findings for the metrics. Belongs to the event loop."""

    def __init__(
        self,
        node: str,
        document: Callable[[], Awaitable[Mapping[str, Any]]],
        registered: Callable[[], Collection[str]],
    ) -> None:
        """`document`: makes the answer to `GET /admin/findings`. `registered`: the nodes of the cluster that are
        registered, as this one knows it; while it is not among them, it reports, too."""
        self._node = node
        self._document = document
        self._registered = registered
        self._counts: Counter[Key] = Counter()
        self._is_reporter = False

    async def measure(self) -> None:
        """Judge, where this node reports; takes WAIT_S at most. What cannot be judged in time is a finding itself."""
        registered = sorted(self._registered())
        self._is_reporter = self._node not in registered[REPORTERS:]
        if not self._is_reporter:
            self._counts = Counter()
            return
        try:
            async with asyncio.timeout(WAIT_S):
                found = await self._document()
        except (TimeoutError, IsthmusError):
            self._counts = Counter({_NOT_JUDGED: 1})
        except Exception as error:  # the other metrics are shown all the same
            unforeseen.exception("metrics.findings_unread", error)
            self._counts = Counter({_NOT_JUDGED: 1})
        else:
            self._counts = _counted(found)

    def samples(self) -> Iterator[Sample]:
        """Samples of the last judgement."""
        yield "isthmus_findings_reporter", {}, float(self._is_reporter)
        for (code, severity, subject), count in self._counts.items():
            yield "isthmus_findings", {"code": code, "severity": severity, "subject": subject}, count


_NOT_JUDGED: Final[Key] = (Code.NOT_KNOWN.value, "unknown", "cluster")


def _counted(found: Mapping[str, Any]) -> Counter[Key]:
    counts: Counter[Key] = Counter()
    for row in found["findings"]:
        key = row["code"], row["severity"], row["subject"]
        counts[key if key in counts or len(counts) < SERIES_MAX else (row["code"], row["severity"], REST)] += 1
    return counts
