"""Figures of a finished demo, as a table or JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from isthmus.node.cli.output import echo_json, echo_table, milliseconds
from isthmus.node.demo.verify import VerifyResult


@dataclass
class DemoOutcome:
    """Figures of a run."""

    histories: list[str] = field(default_factory=list)
    puts: int = 0
    deletes: int = 0
    value_bytes: int = 0
    replay_seconds: float = 0.0
    longest_pause_seconds: float = 0.0
    """Longest time without an acknowledged write: the cost of the failures to a client that retries."""
    whole_seconds: float = 0.0
    settle_seconds: float = 0.0
    compare_seconds: float = 0.0
    total_seconds: float = 0.0
    """From the clusters' start to the end of the comparison."""
    lag_p50_ms: float | None = None
    lag_p99_ms: float | None = None
    breaks: list[str] = field(default_factory=list)
    """Sentences about each kill and its consequences."""
    in_sync: dict[str, str] = field(default_factory=dict)
    """Replicas in sync of each cluster at the end: "36 of 36"."""
    retries: dict[str, int] = field(default_factory=dict)
    restarts: dict[str, int] = field(default_factory=dict)
    cpu_seconds: dict[str, float] = field(default_factory=dict)
    outstanding: str = ""
    """Why the clusters were still apart when the wait for them ended; empty when nothing was outstanding."""
    verdict: VerifyResult = field(default_factory=VerifyResult)

    @property
    def equal(self) -> bool:
        """True only when everything was replicated and compared, and nothing differs."""
        return self.verdict.keys_compared > 0 and self.verdict.equal and not self.outstanding

    def show(self, output: str, where: Mapping[str, Any]) -> None:
        """Print everything; `where` goes into the JSON (directory, clusters)."""
        verdict, operations = self.verdict, self.puts + self.deletes
        if output == "json":
            figures = asdict(self)
            del figures["verdict"]
            echo_json({**figures, **asdict(verdict), "equal": self.equal, "operations": operations, **where})
            return
        rate = operations / self.replay_seconds if self.replay_seconds else 0.0
        compared = (
            f"{verdict.keys_compared:,} keys and {verdict.deleted_compared:,} deleted ones on each cluster, "
            f"{verdict.bytes_compared / 1e6:,.1f} MB, in {self.compare_seconds:.1f} s"
        )
        rows = [
            ("operations", f"{operations:,}: {self.puts:,} puts, {self.deletes:,} deletes"),
            ("values", f"{self.value_bytes / 1e6:,.1f} MB written"),
            ("replay", f"{self.replay_seconds:,.1f} s, {rate:,.0f} operations a second"),
            ("longest pause between two writes", f"{self.longest_pause_seconds:,.1f} s"),
            *(("broken", sentence) for sentence in self.breaks),
            ("until every replica was in sync", f"{self.whole_seconds:,.1f} s"),
            *((f"replicas in sync in {name}", count) for name, count in self.in_sync.items()),
            ("until nothing was outstanding", f"{self.settle_seconds:,.1f} s"),
            ("lag", f"p50 {milliseconds(self.lag_p50_ms)}, p99 {milliseconds(self.lag_p99_ms)}"),
            ("attempts repeated", _counts(self.retries)),
            ("restarts", _counts(self.restarts)),
            *((f"CPU of {name}", f"{cpu:.1f} s") for name, cpu in self.cpu_seconds.items()),
            ("compared", compared),
            ("differences", f"{verdict.difference_count:,}"),
            ("all of it", f"{self.total_seconds:,.0f} s"),
        ]
        echo_table(("figure", "value"), rows)


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items() if count) or "none"
