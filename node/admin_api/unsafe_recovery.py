"""Unsafe recovery in the admin API: a forced leader, and records that a restored metastore lost.

Every request has a plan, which `dry_run` shows and the request itself returns: the state of each replica, and the data
loss. `repl.controller.unclean_election` has the rules; docs/runbooks.md says when to use them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import structs

from isthmus.node.admin_api.acting_user import acting_user
from isthmus.node.http.application import Request, json_reply
from isthmus.node.http.json_body import BodyHandler, struct_reply
from isthmus.node.http.responses import Reply, RequestRefused
from isthmus.node.http.router import Router
from isthmus.node.nouns.partition import ForceLeaderRequest, LeaderPlan, ReplicaHolds
from isthmus.node.nouns.requests import AuditedRequest, DryRun
from isthmus.node.services.container import NodeServices
from isthmus.node.services.replica_query import REPLICAS, NodeReplicaFacts, ReplicaForm
from isthmus.repl.controller import unclean_election
from isthmus.repl.controller.unclean_election import ReplicaReport
from isthmus.repl.isr.effects import ReplicaRole
from isthmus.repl.metastore.counters import new_incarnation
from isthmus.repl.metastore.port import Ambiguous, Unavailable
from isthmus.repl.model.errors import Fenced, IsthmusError
from isthmus.repl.model.record import Incarnation, PartitionRecord, PartitionStatus
from isthmus.repl.runtime.metastore_effects import ROLLED_BACK

RESEED_ATTEMPTS: Final = 5
"""Times that a record is read and written again after other writers changed it in between."""


class ReseedRequest(AuditedRequest, frozen=True, kw_only=True):
    """Raise the records above what the replicas have seen."""

    incomplete: Annotated[bool, msgspec.Meta(description="Go on without the replicas that do not answer.")] = False
    dry_run: DryRun = False


class UnsafeRecoveryAdmin:
    """Routes of unsafe recovery."""

    def __init__(self, services: NodeServices, router: Router[Callable[..., Any]]) -> None:
        self._services = services
        router.add("POST", "/admin/cluster/reseed", BodyHandler(ReseedRequest, self.reseed))

    async def force_leader(self, request: Request, body: ForceLeaderRequest) -> Reply:
        """Elect one replica even if it is not complete; refused while the partition has a leader.

        Answers what each replica holds and what would be lost. `version`, as the dry run returned it, refuses the
        election in any other state.
        """
        record = record_of(request.text("partition"), self._services.controller.records)
        name = body.node
        if name not in record.replicas:
            raise RequestRefused(
                400, "bad-input", f"node must be one that holds the partition: {', '.join(record.replicas)} do"
            )
        if body.version is not None and body.version != record.version:
            raise RequestRefused(
                409, "changed", f"partition {record.partition} has changed since it was shown: look again"
            )
        if record.status is PartitionStatus.ONLINE:
            led = "no node" if record.leader is None else record.leader.node
            raise RequestRefused(
                409, "has-leader", f"partition {record.partition} is online, led by {led}: nothing to force"
            )
        copies, silent = self._copies(record, await self._facts([record]))
        chosen = next((copy for copy in copies if copy.node == name), None)
        if chosen is None:
            raise RequestRefused(
                409, "not-eligible", f"{name} does not answer for its copy: what it holds is not known"
            )
        obstacle = unclean_election.disqualification(
            self._services.controller.registrations.get(name), record.partition, chosen
        )
        if obstacle:
            raise RequestRefused(409, "not-eligible", obstacle)
        plan = self._plan(record, chosen, copies, silent)
        if not body.dry_run:
            written = await self._order(record, chosen, copies, acting_user(body.by), "forced")
            plan = structs.replace(plan, outcome="ordered", epoch=written.epoch, lineage=written.lineage)
            leader = None if record.leader is None else record.leader.node
            before = {"leader": leader, "epoch": record.epoch, "status": record.status.value, "lineage": record.lineage}
            request.changed(before, {"leader": chosen.node, "epoch": written.epoch, "lineage": written.lineage})
        return struct_reply(plan)

    async def reseed(self, request: Request, body: ReseedRequest) -> Reply:
        """Raise every record above what the replicas have seen, after the metastore lost writes.

        `incomplete`: also where replicas do not answer; entries that only they have are lost.
        """
        controller = self._services.controller
        records = controller.records
        facts = await self._facts(list(records.values()))
        dry_run, incomplete, by = body.dry_run, body.incomplete, acting_user(body.by)
        went_back = [
            record
            for _, record in sorted(records.items())
            if record.overtaken or any(_rolled_back(facts.get(node), record.partition) for node in record.replicas)
        ]
        if went_back and not dry_run:
            seen = [row for reported in facts.values() if reported is not None for row in reported.items()]
            await unclean_election.raise_counters(
                controller.metastore,
                max((row.gen for _, row in seen), default=0),
                max((partition + 1 for partition, _ in seen), default=0),
            )
        plans = []
        for record in went_back:
            copies, silent = self._copies(record, facts)
            plans.append(await self._reseeded(record, copies, silent, by, dry_run=dry_run, incomplete=incomplete))
        keys = ("partition", "node", "record_epoch", "outcome", "epoch")
        request.changed(None, [{key: getattr(plan, key) for key in keys} for plan in plans])
        forgotten = sorted(
            {p for reported in facts.values() if reported is not None for p in reported} - records.keys()
        )
        return json_reply({"partitions": msgspec.to_builtins(plans), "forgotten": forgotten, "looked_at": len(records)})

    async def _reseeded(
        self,
        record: PartitionRecord,
        copies: list[ReplicaReport],
        silent: list[str],
        by: str,
        *,
        dry_run: bool,
        incomplete: bool,
    ) -> LeaderPlan:
        if not copies:
            reason = f"no replica answers: start {', '.join(silent)}"
            return structs.replace(self._plan(record, None, copies, silent), outcome="left", reason=reason)
        chosen = unclean_election.most_complete(copies)
        plan = self._plan(record, chosen, copies, silent)
        found = self._services.controller.registrations.get(chosen.node)
        obstacle = unclean_election.disqualification(found, record.partition, chosen)
        if not obstacle and silent and not incomplete:
            obstacle = f"{', '.join(silent)} did not answer and may hold more: start them, or go on without them"
        if obstacle:
            return structs.replace(plan, outcome="left", reason=obstacle)
        if dry_run:
            return plan
        reason = ""
        for _ in range(RESEED_ATTEMPTS):  # the controller goes on nominating by the old record meanwhile
            try:
                newest = await self._services.controller.metastore.synced_record(record.partition)
                written = await self._order(newest, chosen, copies, by, "re-seeded")
            except Fenced as error:
                reason = str(error)
            except (IsthmusError, Unavailable, Ambiguous, LookupError) as error:
                return structs.replace(plan, outcome="left", reason=str(error))
            else:
                return structs.replace(plan, outcome="ordered", epoch=written.epoch, lineage=written.lineage)
        return structs.replace(plan, outcome="left", reason=reason)

    async def _order(
        self, record: PartitionRecord, chosen: ReplicaReport, copies: list[ReplicaReport], by: str, act: str
    ) -> PartitionRecord:
        controller = self._services.controller
        who = Incarnation(chosen.node, controller.registrations[chosen.node].session_id)
        reason = f"{act} by {by}: waits for {chosen.node} to promote itself"
        epochs = (copy.epoch for copy in copies)
        made = unclean_election.forced(record, chosen, who, epochs, new_incarnation(), reason)
        written = await unclean_election.order(controller.metastore, made, by, act)
        controller.wake()
        return written

    async def _facts(self, records: list[PartitionRecord]) -> Mapping[str, NodeReplicaFacts | None]:
        held = {node for record in records for node in record.replicas}
        nodes = held & self._services.controller.registrations.keys()
        return (await self._services.query.ask(REPLICAS, ReplicaForm.WITH_OUT, nodes)).by_node

    @staticmethod
    def _copies(
        record: PartitionRecord, facts: Mapping[str, NodeReplicaFacts | None]
    ) -> tuple[list[ReplicaReport], list[str]]:
        """The replicas that are known, and the nodes without an answer."""
        copies, silent = [], []
        for node in record.replicas:
            reported = facts.get(node)
            row = None if reported is None else reported.get(record.partition)
            if row is None:
                silent.append(node)
            else:
                failed = row.role == ReplicaRole.FAILED
                reach = row.log_epoch, row.leo
                copies.append(
                    ReplicaReport(node, row.epoch, *reach, row.hw, row.applied, row.gen, row.transfers, failed)
                )
        return copies, silent

    def _plan(
        self, record: PartitionRecord, chosen: ReplicaReport | None, copies: list[ReplicaReport], silent: list[str]
    ) -> LeaderPlan:
        """What happens if `chosen` leads; None: there is none to choose."""
        leader = "" if chosen is None else chosen.node
        guard = {(member.node, member.log_id) for member in record.isr | record.elr}
        holds = [
            ReplicaHolds(
                node=copy.node,
                eligible=(copy.node, copy.log_id) in guard,
                epoch=copy.epoch,
                log_epoch=copy.log_epoch,
                leo=copy.leo,
                hw=copy.hw,
                applied=copy.applied,
                gen=copy.log_id,
            )
            for copy in copies
        ]
        if chosen is None:
            notes = ["what its replicas hold is unknown"]
        else:
            notes = unclean_election.data_loss(chosen, copies, silent)
        clean = [each.node for each in holds if each.eligible and each.node != leader]
        if clean and record.status is not PartitionStatus.OFFLINE:
            notes.append(f"an election without loss may be under way: {', '.join(clean)} may be elected")
        if record.effective_min_isr > 1:
            notes.append(f"writes are refused until {record.effective_min_isr} replicas are in sync (min-ISR)")
        return LeaderPlan(
            outcome="would be ordered",
            partition=record.partition,
            node=leader,
            version=record.version,
            status=record.status.value,
            record_epoch=record.epoch,
            reason=record.reason,
            replicas=[*holds, *(ReplicaHolds(node, None, None, None, None, None, None, None) for node in silent)],
            notes=notes,
        )


def record_of(name: str, records: Mapping[int, PartitionRecord]) -> PartitionRecord:
    """The record of a partition that a path names. Raises RequestRefused."""
    number = int(name) if name.isascii() and name.isdigit() and len(name) < 19 else -1
    if number not in records:
        raise RequestRefused(404, "unknown-partition", f"there is no partition {name[:40]!r}: {len(records)} are there")
    return records[number]


def _rolled_back(reported: NodeReplicaFacts | None, partition: int) -> bool:
    """True when a node's replica refuses the record as older than what it has seen."""
    row = None if reported is None else reported.get(partition)
    return row is not None and row.reason.startswith(ROLLED_BACK)
