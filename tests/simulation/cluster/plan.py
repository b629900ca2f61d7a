"""The mix of faults and the shape of a simulation: number of nodes and replicas, faults and their frequencies."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from isthmus.repl.isr.replica_state import ReplicaOptions

KINDS = (
    "kill",
    "power_loss",
    "blackout",
    "replace_disk",
    "pause",
    "long_pause",
    "take_over",
    "stop",
    "ambush",
    "slow_disk",
    "failing_disk",
    "cut_nodes",
    "cut_metastore",
    "isolate",
    "swizzle",
    "flap",
    "slow_link",
    "outage",
    "sleeping_controller",
    "cut_controller",
    "hand_over",
    "min_isr",
    "reassign",
    "balance",
)
"""Names of the faults, each a method of `Faults`."""

OFTEN = {"ambush": 3, "stop": 2, "cut_nodes": 2, "hand_over": 2, "reassign": 2}

CHURN = {
    "kill": 1, "power_loss": 0.3, "cut_nodes": 4, "cut_metastore": 3, "isolate": 3, "long_pause": 1, "hand_over": 4,
    "swizzle": 1, "flap": 1, "reassign": 2,
}  # fmt: skip
"""Many leader changes under long cuts, with messages that come when everything is different."""

SHAPES = (
    (3, 3, 2), (3, 3, 2), (3, 3, 2), (4, 3, 2), (4, 3, 2), (5, 3, 2), (3, 3, 1), (4, 3, 3), (3, 2, 1), (3, 2, 2),
    (5, 5, 3), (5, 4, 2), (4, 4, 3), (1, 1, 1),
)  # fmt: skip
"""(nodes, replication factor, min-ISR)."""

WINDOW_ENTRIES = 16
"""Small, so that slow disks and stalls fill it."""


@dataclass(slots=True)
class Plan:
    """One seed's mix. Rates are probabilities of one message or chance; `gap_ms` is the mean time between faults."""

    node_count: int = 3
    factor: int = 3
    min_isr: int = 2
    partition_count: int = 1
    asynchronous: bool = False
    """Durability `async`: acknowledged means written, not synced, and a power loss changes the log id."""
    churn: bool = False
    gap_ms: int = 700
    weights: tuple[float, ...] = (0.0,) * len(KINDS)
    lost: float = 0.0
    repeated: float = 0.0
    overtaken: float = 0.0
    held: float = 0.0
    """Share of messages between nodes."""
    store_lost: float = 0.0
    store_held: float = 0.0
    """Share of requests to the metastore and of its answers."""
    link_silence: float = 0.0
    """How often no notification is sent that a connection came or went."""
    trims: float = 0.4
    harsh_trims: bool = False
    """Logs are trimmed even where a replica out of sync still needs them; it then takes rows instead."""
    sync_on_open: bool = True
    write_gap_ms: int = 120
    reads: float = 0.3
    message_entries: int = 64
    last_resort_ms: int = 0
    """Time at which the electable replicas begin to lose their disks, so that an operator must force another one; 0:
    never."""
    redirects: bool = False
    """Changes of replicas that are under way are sent elsewhere, taken back, and wanted again."""
    liveness: bool = False
    """Before all faults end, only as many nodes are up as writes need."""
    options: ReplicaOptions = field(
        default_factory=lambda: ReplicaOptions(
            window_entries=WINDOW_ENTRIES, max_time_lag_ms=800, max_record_lag=1_000, max_near_sync_message_lag=100_000
        )
    )

    @property
    def loses_data(self) -> bool:
        """True when replicas may lose acknowledged data."""
        return self.asynchronous or self.weights[KINDS.index("replace_disk")] > 0

    @staticmethod
    def drawn(rng: Random) -> Plan:
        """A mix of its own for each seed."""
        node_count, factor, min_isr = rng.choice(SHAPES)
        churn = rng.random() < 0.2
        if churn:
            weights = tuple(CHURN.get(kind, 0) for kind in KINDS)
        else:
            weights = tuple(rng.choice((0, 0.3, 1, 1, 3)) * OFTEN.get(kind, 1) for kind in KINDS)
        calm_network = rng.random() < 0.25
        calm_store = rng.random() < 0.3
        record_lag = rng.choice((1_000, 1_000, 40, 20))
        return Plan(
            node_count=node_count,
            factor=factor,
            min_isr=min_isr,
            partition_count=rng.choice((1, 1, 1, 2)),
            asynchronous=rng.random() < 0.2,
            churn=churn,
            gap_ms=500 if churn else rng.choice((300, 600, 1_200, 2_500)),
            weights=weights,
            lost=0 if calm_network else rng.choice((0, 0.01, 0.05)),
            repeated=0 if calm_network else rng.choice((0, 0.03, 0.1)),
            overtaken=0 if calm_network else rng.choice((0, 0.05, 0.3)),
            held=0.06 if churn else 0 if calm_network else rng.choice((0, 0.005, 0.02)),
            store_lost=0 if calm_store else rng.choice((0, 0.02, 0.1, 0.2)),
            store_held=0 if calm_store else rng.choice((0, 0.02, 0.1, 0.2)),
            link_silence=rng.choice((0, 0, 0.3)),
            trims=rng.choice((0, 0.4, 0.9)),
            harsh_trims=rng.random() < 0.3,
            sync_on_open=rng.random() < 0.6,
            write_gap_ms=rng.choice((60, 120, 250)),
            reads=rng.choice((0.1, 0.3, 0.6)),
            message_entries=rng.choice((1, 4, 64)),
            liveness=rng.random() < 0.5,
            options=ReplicaOptions(
                window_entries=WINDOW_ENTRIES,
                max_time_lag_ms=rng.choice((400, 800, 1_500)),
                max_record_lag=record_lag,
                max_near_sync_message_lag=rng.choice((100_000, 100_000, 2 * WINDOW_ENTRIES)),
                min_transfer_rounds=rng.choice((1, 2, 3)),
            ),
        )

    @staticmethod
    def only(*kinds: str, **changes: Any) -> Plan:
        """A mix of few faults, to test their effects closely."""
        assert set(kinds) <= set(KINDS)
        return Plan(weights=tuple(1.0 if kind in kinds else 0.0 for kind in KINDS), **changes)
