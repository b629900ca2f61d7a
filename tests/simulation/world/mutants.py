"""Deliberate defects between parts of the product, each of which the world must find.

Each is a function that puts the defect in by patching the product's class; its docstring names the wrong behaviour, and
the rule that it breaks. `MUTANTS` says which oracle finds it, in which kind of world, and within how many seeds. A
defect that no seed shows means that an act, a fault or an oracle is missing.

Some defects need a moment that hardly any seed has. They have tests of their own, which put the moment in by hand:

    a merge that keeps nothing (R-KEEP)           tests/simulation/mesh/test_convergence.py
    a follower in sync before it has caught up    tests/simulation/cluster, tests/unit/repl/isr/replica
    an acknowledgement of a refused run           tests/unit/repl/isr/test_pair_stream.py
    a read confirmed by an earlier round          tests/unit/repl/isr/read_index
    a repeated request over a pending reap        tests/unit/repl/coordinator/write_batch/test_repeated_requests.py
    a forwarded write without an answer, refused  tests/unit/repl/coordinator/test_forwarding.py
    a soft cursor of another lineage (R-SOFT)     tests/unit/queues/queue_server/test_new_leader.py
    batch ids that are given out again            tests/unit/queues/source_queue/test_rules.py
    floors or identity of a backup, out of order  tests/unit/node/backup/create/test_order_of_copies.py
    a log that is trimmed too far                 tests/unit/repl/replog
    a leader that nobody can dial (R-REACHED)     tests/unit/repl/controller, tests/simulation/cluster
    a want of descriptors that ends a node        tests/unit/repl/storage/test_slot_file.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import pytest

from tests.simulation.world import mutants_backups as backups
from tests.simulation.world import mutants_credentials as credentials
from tests.simulation.world import mutants_queues as queues
from tests.simulation.world import mutants_replicas as replicas
from tests.simulation.world import mutants_told as told
from tests.simulation.world import mutants_versions as versions
from tests.simulation.world import run as _steps_are_known  # noqa: F401 -- acts and faults are taught to the world
from tests.simulation.world.clusters import Shape
from tests.simulation.world.plan import Plan, drawn
from tests.simulation.world.steps import KINDS, StepKind


class Draw(NamedTuple):
    """How plans of one kind are drawn from seeds: what clients do, beside these acts and faults alone."""

    among: tuple[str, ...] = ()
    operations: int = 60
    acts: int = 0
    seconds: float = 10.0
    nodes: tuple[int, ...] = (1, 1)
    one_way: bool = False
    tls: bool = False
    """With tokens, too."""
    first: int = 0
    """The first seed."""

    def plan(self, seed: int) -> Plan:
        """The plan of a seed, counted from the first one."""
        seed += self.first
        shape = Shape(self.nodes, 1, self.one_way, tokens=self.tls, tls=self.tls)
        names = {*KINDS[StepKind.OPERATION], *self.among}
        return drawn(seed, shape=shape, operations=self.operations, acts=self.acts, seconds=self.seconds, among=names)


CALM: Final = Draw(seconds=8)
ONE_WAY: Final = CALM._replace(one_way=True)
TRIO: Final = CALM._replace(nodes=(3, 1))
"""A cluster of three nodes, and one of one."""
APART: Final = Draw(("cut-clusters", "sink-suspend"), 150, 5)
"""Clusters that do not see each other's writes for a while, so that they conflict."""
BEHIND: Final = Draw(("sink-suspend", "cut-clusters"), 150, 16, 15)
"""Changes wait at most moments."""
CUT: Final = Draw(("cut-clusters", "kill", "freeze", "reset-connections"), 80, 6, 15)
CUTS: Final = Draw(("cut-clusters",), 150, 4, 15)
FROZEN: Final = Draw(("freeze", "cut-clusters"), 120, 8, 20)
POWER: Final = Draw(("power-loss", "power-loss-of-a-cluster", "kill"), 60, 6, 15)
CLEARED: Final = Draw(("sink-suspend", "queue-clear"), 60, 8)
PUBLISHED: Final = Draw(("queue-suspend", "queue-resume"), 80, 12, 12)
GAPS_AND_KILLS: Final = Draw(("queue-suspend", "queue-resume", "queue-clear", "sink-suspend", "kill"), 150, 24, 15)
QUEUES: Final = Draw(
    (
        "queue-suspend", "queue-resume", "queue-clear", "queue-release", "queue-set", "sink-suspend", "sink-resume",
        "fullsync-run",
    ),
    60, 10, 12,
)  # fmt: skip
REAPED: Final = Draw(
    ("kv-reap", "fold-reap-tombs", "sink-suspend", "sink-resume", "queue-clear", "fullsync-run"), 80, 10, 15
)
RESTORED: Final = Draw(("backup-restore-cluster", "isthmus-cluster-rolling-restart"), 250, 8, 20)
"""Nodes restart between a backup and its restoration, so that an epoch begins twice."""
MINUTE: Final = Draw(("sink-suspend", "queue-clear", "fullsync-suspend"), 150, 16, 75)
"""Long enough for nodes to look at gaps once."""
MINUTE_OF_CLOCKS: Final = Draw(("sink-suspend", "queue-clear", "fullsync-run", "clock-step"), 300, 48, 75)
LED: Final = Draw(("leader-balance", "kill", "sink-suspend", "queue-clear"), 100, 10, 15, (3, 1))
EXPIRED: Final = Draw(("session-expires", "leader-balance", "freeze"), 150, 10, 15, (3, 1))
ISOLATED: Final = Draw(("cut-off",), 250, 4, 25, (3, 1))
RESET: Final = Draw(("reset-connections", "leader-balance", "kill"), 150, 30, 15, (3, 1))
SIZES: Final = Draw(("properties-set",), 150, 30, 12)
REWRITTEN: Final = Draw(("kv-reap", "slow-disk"), 250, 60, 15)
"""Writes are long under way, so that a tombstone may be due meanwhile."""
FILTERED: Final = Draw(("queue-set",), 120, 40, 20)
"""Queues include less for a while, so that tombstones are reaped which the other cluster never saw."""
LEFT: Final = Draw(("queue-throttle", "queue-suspend", "queue-delist"), 20, 40, 12)
EMPTIED: Final = Draw(("lost-directory", "write-much"), 20, 6, 20, (3, 1))
"""Followers that come back with nothing, to leaders whose logs do not reach back to the beginning."""
COPIED: Final = Draw(("backup-create", "backup-restore-cluster"), 250, 6, 20)

ROTATED: Final = Draw(("token-rotate",), 20, 2, 15, tls=True)
SPOILED: Final = Draw(("token-file-spoil",), 20, 2, 15, tls=True)
CERTIFIED: Final = Draw(("certificate-spoil",), 20, 4, 15, tls=True)
RENEWED_LATE: Final = Draw(("certificate-expire", "kill"), 20, 4, 20.0, (2, 1), tls=True)
RENEWED: Final = Draw(("certificate-renew",), 20, 2, 15, tls=True)


class Mutant(NamedTuple):
    """A defect, and how the world finds it."""

    put_in: Callable[[pytest.MonkeyPatch], None]
    oracle: str
    """Who says so, among others."""
    draw: Draw
    seeds: int = 1
    """Within the first so many seeds."""
    quick: bool = False
    """Also in quick runs: it is found in a second or less."""


MUTANTS: Final = (
    # versions
    Mutant(versions.pushes_replace, "nothing-lost", APART, quick=True),
    Mutant(versions.pushes_know_no_properties, "nothing-lost", APART, quick=True),
    Mutant(versions.keeps_what_it_had, "errors", CUTS),
    Mutant(versions.writes_replace_what_they_have_not_seen, "nothing-lost", CALM, quick=True),
    Mutant(versions.forgets_requests, "committed-reads", CALM, 3),
    Mutant(versions.remembers_only_requests_under_way, "committed-reads", CALM, 3),
    Mutant(versions.forgets_requests_of_earlier_leaders, "committed-reads", RESET, 12),
    Mutant(versions.answers_repeated_requests_at_once, "committed-reads", EXPIRED, 4),
    Mutant(versions.ignores_conditions, "committed-reads", CALM, quick=True),
    Mutant(versions.client_names_all_writes_alike, "nothing-lost", CALM, quick=True),
    Mutant(versions.keeps_its_actor_when_it_goes_back, "versions", RESTORED, 2),
    Mutant(versions.reaps_before_it_is_acknowledged, "delivered", REAPED, 3),
    Mutant(versions.forgets_what_it_has_reaped, "nothing-lost", REAPED, 2),
    Mutant(versions.writes_below_what_was_reaped, "nothing-lost", REAPED, 2),
    Mutant(versions.reaps_what_was_rewritten, "committed-reads", REWRITTEN, 14),
    Mutant(versions.recalls_nothing, "world", FILTERED, 2),
    # replicas
    Mutant(replicas.commits_what_is_durable_here, "delivered", ISOLATED),
    Mutant(replicas.acknowledges_what_is_not_on_disk, "world", POWER),
    Mutant(replicas.reads_without_confirming, "committed-reads", ISOLATED),
    Mutant(replicas.answers_forwarded_items_in_another_order, "nothing-lost", TRIO, quick=True),
    Mutant(replicas.refuses_a_batch_for_one_item, "committed-reads", SIZES, quick=True),
    Mutant(replicas.replays_nothing, "errors", POWER),
    Mutant(replicas.transfers_all_rows_but_one, "equal", EMPTIED),
    # sinks
    Mutant(queues.acknowledges_failed_pushes, "delivered", CUTS, 2),
    Mutant(queues.leaves_out_a_change_of_a_batch, "delivered", CALM, quick=True),
    Mutant(queues.acknowledges_before_it_pushes, "delivered", CUT, quick=True),
    # cursors and leases
    Mutant(queues.settles_what_failed, "delivered", CUT, quick=True),
    Mutant(queues.settles_what_it_takes_back, "delivered", CUT),
    Mutant(queues.begins_at_the_end_when_it_leads, "delivered", CUT, quick=True),
    Mutant(queues.moves_its_cursor_over_what_was_served, "delivered", CUT, 6, quick=True),
    Mutant(queues.keeps_leases_for_ever, "world", FROZEN, 8),
    Mutant(queues.keeps_the_budget_of_windows_that_ended, "bounds", LED, 3),
    Mutant(queues.serves_partitions_that_it_led, "errors", EXPIRED, 2),
    Mutant(queues.counts_what_comes_back_as_acknowledged, "ledgers", CUT, quick=True),
    # gaps
    Mutant(queues.takes_cleared_changes_for_excluded, "delivered", CLEARED, quick=True),
    Mutant(queues.moves_cursors_without_gaps, "delivered", CLEARED, quick=True),
    Mutant(queues.ends_gaps_where_they_began, "delivered", PUBLISHED, 2),
    Mutant(queues.forgets_gaps_when_it_leads, "delivered", GAPS_AND_KILLS, 3, quick=True),
    Mutant(queues.closes_gaps_without_proof, "closed-gaps", MINUTE),
    Mutant(queues.closes_gaps_by_clocks, "closed-gaps", MINUTE_OF_CLOCKS),
    # full-sync
    Mutant(queues.compares_only_whether_keys_are_there, "world", QUEUES),
    Mutant(queues.forgets_deletes_in_its_tree, "errors", QUEUES, quick=True),
    Mutant(queues.asks_one_way_links_for_equality, "world", ONE_WAY),
    Mutant(queues.says_in_sync_where_it_repairs, "equal", QUEUES, 3),
    Mutant(queues.repairs_only_what_is_missing, "world", QUEUES),
    Mutant(queues.drops_what_full_sync_queues, "world", QUEUES),
    # operators' documents
    Mutant(queues.registers_with_what_was_left, "step queue-delist", LEFT),
    # backups
    Mutant(backups.copies_the_log_before_the_rows, "step backup-create", COPIED, 2),
    # tokens and certificates
    Mutant(credentials.permits_nobody_by_a_spoiled_file, "step token-file-spoil", SPOILED, 2, quick=True),
    Mutant(credentials.keeps_what_it_granted, "step token-rotate", ROTATED, quick=True),
    Mutant(credentials.is_silent_about_spoiled_files, "step token-file-spoil", SPOILED, quick=True),
    Mutant(credentials.takes_any_certificate, "step certificate-spoil", CERTIFIED, 2, quick=True),
    Mutant(credentials.knows_certificates_by_connections, "world", RENEWED_LATE, 6),
    Mutant(credentials.needs_a_restart_for_certificates, "step certificate-renew", RENEWED, quick=True),
    # what operators are told
    Mutant(told.takes_what_waits_for_acknowledged, "told", BEHIND, 6),
    Mutant(told.is_never_behind, "told", QUEUES, quick=True),
    Mutant(told.tells_gaps_of_another_offset, "told", QUEUES),
    Mutant(told.finds_no_gaps, "told", CLEARED, quick=True),
    Mutant(told.finds_replicas_out_of_sync, "told", CLEARED),
    Mutant(told.a_note_of_conflicts_raises, "errors", APART, quick=True),
)
