"""Mixes of few faults, each aimed at one rule: defects are caught in them, and sound cores pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.simulation.cluster.plan import Plan


def storms(**changes: Any) -> Callable[[], Plan]:
    """Crashes, cuts and hand-overs, with a bad metastore and a bad network."""
    mix: dict[str, Any] = {
        "gap_ms": 350, "lost": 0.02, "repeated": 0.05, "overtaken": 0.2, "held": 0.02, "store_lost": 0.1,
        "store_held": 0.1, "write_gap_ms": 60, "reads": 0.6,
    }  # fmt: skip
    kinds = ("kill", "power_loss", "long_pause", "ambush", "cut_nodes", "cut_metastore", "isolate", "hand_over", "stop")
    return lambda: Plan.only(*kinds, **{**mix, **changes})


def losses(**changes: Any) -> Callable[[], Plan]:
    """Disks are replaced, among kills and cuts."""
    mix = {"gap_ms": 500, "write_gap_ms": 60, "trims": 0.0}
    return lambda: Plan.only("replace_disk", "kill", "isolate", "cut_nodes", **{**mix, **changes})


def settings() -> Plan:
    """min-ISR is set up and down while members come and go."""
    return Plan.only("min_isr", "kill", "isolate", gap_ms=250, write_gap_ms=60, min_isr=1, store_lost=0.1)


def cuts(**changes: Any) -> Callable[[], Plan]:
    """Long cuts and many leaders; reads at every node."""
    mix = {"churn": True, "gap_ms": 500, "write_gap_ms": 60, "reads": 0.9}
    return lambda: Plan.only("isolate", "cut_metastore", "long_pause", "cut_nodes", "hand_over", **{**mix, **changes})


def pauses() -> Plan:
    """Leaders sleep and wake, while messages are repeated."""
    mix: dict[str, Any] = {"churn": True, "gap_ms": 400, "write_gap_ms": 40, "repeated": 0.5}
    return Plan.only("hand_over", "long_pause", "isolate", **mix)


def unattended() -> Plan:
    """Disks are replaced while controllers do not read."""
    return Plan.only("replace_disk", "sleeping_controller", gap_ms=300, write_gap_ms=60, trims=0.0)


def last_resorts(**changes: Any) -> Callable[[], Plan]:
    """All electable replicas lose their disks among kills and cuts, and an operator forces a remaining one."""
    mix: dict[str, Any] = {
        "gap_ms": 900, "write_gap_ms": 60, "trims": 0.0, "last_resort_ms": 2_500, "lost": 0.01, "repeated": 0.05,
        "overtaken": 0.2, "held": 0.02, "store_lost": 0.05, "store_held": 0.05,
    }  # fmt: skip
    kinds = (
        "kill",
        "power_loss",
        "pause",
        "long_pause",
        "cut_nodes",
        "cut_metastore",
        "hand_over",
        "sleeping_controller",
    )
    return lambda: Plan.only(*kinds, **{**mix, **changes})


def redirects(**changes: Any) -> Callable[[], Plan]:
    """Replicas move, among cuts, and each such change is sent elsewhere again and again while it is under way."""
    mix: dict[str, Any] = {"node_count": 5, "gap_ms": 250, "write_gap_ms": 60, "trims": 0.0, "redirects": True}
    return lambda: Plan.only("reassign", "kill", "isolate", "cut_nodes", "long_pause", **{**mix, **changes})


def moves(**changes: Any) -> Callable[[], Plan]:
    """Replicas move, among kills and cuts, and disks that are replaced."""
    mix = {"node_count": 5, "gap_ms": 350, "write_gap_ms": 60, "trims": 0.0}
    return lambda: Plan.only("reassign", "kill", "isolate", "cut_nodes", "replace_disk", **{**mix, **changes})
