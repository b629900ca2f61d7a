"""Replication metrics of the cluster, of each bucket type and of each node, merged from the nodes' answers. Pure.

A node reports its numbers by bucket type (`TypeFacts`); a level adds up many of them. An average is computed from sums,
never from averages. A level without a measurement has null for its numbers, and a time is null where no such entry
occurred. The safety of partitions comes from the metastore's records, without any node. The nodes are asked by
`node.services.telemetry_query`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from isthmus.repl.model.record import PartitionRecord
from isthmus.repl.runtime.metrics import PARTS, ReplogSizes, worst_isr


class KindFacts(NamedTuple):
    """Entries of one kind since the node started, and in the recent past: how many in how long, and their times."""

    entries: int = 0
    recent: int = 0
    recent_ms: int = 0
    recent_max_ms: int = 0
    span_ms: int = 0


class ClusterRates(NamedTuple):
    """Entries of one kind on many nodes: each node has its own span, so rates are added and not counts."""

    entries: int = 0
    recent: int = 0
    recent_ms: int = 0
    recent_max_ms: int = 0
    per_s: float = 0.0

    def with_node(self, facts: KindFacts) -> ClusterRates:
        """These rates and those of one more node."""
        rate = 1000 * facts.recent / facts.span_ms if facts.span_ms else 0.0
        return ClusterRates(
            self.entries + facts.entries,
            self.recent + facts.recent,
            self.recent_ms + facts.recent_ms,
            max(self.recent_max_ms, facts.recent_max_ms),
            self.per_s + rate,
        )

    def shown(self) -> dict[str, Any]:
        """The rates as JSON."""
        return {
            "total": self.entries,
            "per_s": round(self.per_s, 3),
            "average_ms": round(self.recent_ms / self.recent, 3) if self.recent else None,
            "max_ms": self.recent_max_ms if self.recent else None,
        }


@dataclass(slots=True)
class TypeFacts:
    """One node's numbers of one bucket type. `failures`: by kind and reason."""

    replogs: dict[str, ReplogSizes] = field(default_factory=dict)
    replicate: dict[str, KindFacts] = field(default_factory=dict)
    apply: dict[str, KindFacts] = field(default_factory=dict)
    failures: dict[tuple[str, str], int] = field(default_factory=dict)
    recent_failures: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    """In the recent past: how many in how many ms; nodes of the version before do not send it."""


NodeFacts = Mapping[str, TypeFacts]
"""Bucket type -> its numbers."""


def telemetry_document(records: Collection[PartitionRecord], answers: Mapping[str, NodeFacts | None]) -> dict[str, Any]:
    """The answer to `GET /admin/telemetry`. `answers`: node -> its numbers, None without an answer; it has every node
    that holds a replica."""
    known = {node: facts for node, facts in answers.items() if facts is not None}
    kinds = sorted({record.bucket_type for record in records} | {kind for facts in known.values() for kind in facts})
    return {
        "nodes_counted": sorted(known),
        "nodes_unknown": sorted(answers.keys() - known.keys()),
        "cluster": _level(records, [each for facts in known.values() for each in facts.values()], bool(known)),
        "bucket_types": [
            {
                "bucket_type": kind,
                **_level(
                    [record for record in records if record.bucket_type == kind],
                    [facts[kind] for facts in known.values() if kind in facts],
                    bool(known),
                ),
            }
            for kind in kinds
        ],
        "nodes": [
            {
                "node": node,
                "reason": "" if facts is not None else "the node did not answer, or is gone",
                **_level(
                    [record for record in records if record.leader is not None and record.leader.node == node],
                    [] if facts is None else facts.values(),
                    facts is not None,
                ),
            }
            for node, facts in sorted(answers.items())
        ],
    }


def _level(records: Collection[PartitionRecord], facts: Iterable[TypeFacts], known: bool) -> dict[str, Any]:
    worst = worst_isr(records)
    shown: dict[str, Any] = {
        "replogs": None,
        "replicate": None,
        "failures": None,
        "failures_per_s": None,
        "apply": None,
    }
    if known:
        shown = _measured(list(facts))
    shown["isr"] = None if worst is None else {
        "partition": worst.partition,
        "members": len(worst.isr),
        "min_isr": worst.effective_min_isr,
        "replicas": len(worst.replicas),
    }  # fmt: skip
    return shown


def _measured(facts: list[TypeFacts]) -> dict[str, Any]:
    replogs = dict.fromkeys(PARTS, ReplogSizes())
    replicate: dict[str, ClusterRates] = {}
    apply: dict[str, ClusterRates] = {}
    failures: dict[str, dict[str, int]] = {}
    rates: dict[str, dict[str, float]] = {}
    for each in facts:
        for part, sizes in each.replogs.items():
            replogs[part] = replogs[part].merged(sizes)
        for into, found in ((replicate, each.replicate), (apply, each.apply)):
            for kind, times in found.items():
                into[kind] = into.get(kind, ClusterRates()).with_node(times)
        for (kind, reason), count in each.failures.items():
            by_reason = failures.setdefault(kind, {})
            by_reason[reason] = by_reason.get(reason, 0) + count
        for (kind, reason), (count, span_ms) in each.recent_failures.items():
            rate_by_reason = rates.setdefault(kind, {})
            rate_by_reason[reason] = rate_by_reason.get(reason, 0.0) + (1000 * count / span_ms if span_ms else 0.0)
    return {
        "replogs": {part: _sizes(sizes) for part, sizes in replogs.items()},
        "replicate": {kind: pace.shown() for kind, pace in sorted(replicate.items())},
        "failures": {kind: dict(sorted(found.items())) for kind, found in sorted(failures.items())},
        "failures_per_s": {
            kind: {reason: round(rate, 3) for reason, rate in sorted(found.items())}
            for kind, found in sorted(rates.items())
        },
        "apply": {kind: pace.shown() for kind, pace in sorted(apply.items())},
    }


def _sizes(sizes: ReplogSizes) -> dict[str, Any]:
    none = sizes.replicas == 0
    return {
        "replicas": sizes.replicas,
        "entries_average": None if none else round(sizes.entries / sizes.replicas, 3),
        "entries_max": None if none else sizes.entries_max,
        "unapplied_average": None if none else round(sizes.unapplied / sizes.replicas, 3),
        "unapplied_max": None if none else sizes.unapplied_max,
    }
