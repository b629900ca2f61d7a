"""The status of the cluster for operators: nodes, partitions, problems and their reasons. Pure.

Records and registrations are the metastore's, as this node last read them; the facts of a replica are its own node's
(`node.services.replica_query`). The facts of a node that does not answer are None, "unknown" in a table.
`node.admin_api.application` shows the status.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, Final

from msgspec import structs

from isthmus.node.http.answer_texts import silent_sentence
from isthmus.node.nouns.node import NodeRow
from isthmus.node.nouns.partition import PartitionRow, ReplicaRow
from isthmus.node.services.finding_codes import CODES, Code
from isthmus.node.services.replica_query import NodeReplicaFacts, ReplicaFacts
from isthmus.repl.model.errors import OutOfStorage
from isthmus.repl.model.record import Member, PartitionRecord, PartitionStatus, Registration

Records = Mapping[int, PartitionRecord]
Registrations = Mapping[str, Registration]

PROBLEMS_MAX: Final = 20
"""Sentences about problems; a cluster that has lost a node would otherwise list every partition."""


def node_rows(
    records: Records,
    registrations: Registrations,
    drained: Collection[str] = (),
    known: Collection[str] = (),
    ids: Mapping[str, int] | None = None,
) -> list[NodeRow]:
    """Every node that is registered, holds a replica, or is among `drained` or `known`, by name. `ids`: the node ids of
    nodes that are down."""
    leads = Counter(r.leader.node for r in records.values() if r.leader is not None)
    holds = Counter(node for r in records.values() for node in r.replicas)
    in_sync = Counter(member.node for r in records.values() for member in r.isr)
    return [
        _node_row(
            NodeRow(
                name=name,
                id=(ids or {}).get(name),
                rack=None,
                state="gone",
                drained=name in drained,
                leaders=leads[name],
                replicas=holds[name],
                in_sync=in_sync[name],
                http=None,
                admin=None,
                cluster=None,
                reason="it has no session with the metastore: not started, stopped, or cut off",
            ),
            registrations.get(name),
        )
        for name in sorted({*registrations, *holds, *drained, *known})
    ]


def _node_row(gone: NodeRow, found: Registration | None) -> NodeRow:
    """The row of a node; `gone`: its row without a registration."""
    if found is None:
        return gone
    leaving = "it is stopping: it hands over what it leads and is not elected"
    return structs.replace(
        gone,
        id=found.id,
        rack=found.rack,
        state="live" if found.active else "leaving",
        http=found.http_url,
        admin=found.admin_url,
        cluster=found.cluster_address,
        reason="" if found.active else leaving,
    )


def with_gone(records: Records, reported: Mapping[str, Any]) -> dict[str, Any]:
    """Answers by node, with None for each node that holds a replica and was not asked because it is gone."""
    return dict(sorted({**{node: None for r in records.values() for node in r.replicas}, **reported}.items()))


def partition_counts(records: Records) -> dict[str, int]:
    """The number of partitions, in total and in each status."""
    found = Counter(record.status for record in records.values())
    return {"total": len(records), **{status.value.replace("-", "_"): found[status] for status in PartitionStatus}}


def replica_counts(records: Records) -> dict[str, int]:
    """The number of replicas, in total and in sync."""
    return {
        "total": sum(len(record.replicas) for record in records.values()),
        "in_sync": sum(len(record.isr) for record in records.values()),
    }


def under_replicated(records: Records) -> list[int]:
    """Partitions with fewer replicas in sync than their replication factor. During a reassignment the factor is the
    smaller of before and after: a replica that is only being added is not missing yet."""
    return [p for p, record in sorted(records.items()) if len(record.isr) < record.factor]


def below_min_isr(records: Records) -> list[int]:
    """Partitions with too few replicas in sync to take writes."""
    return [p for p, record in sorted(records.items()) if len(record.isr) < record.effective_min_isr]


def unclean_elections(records: Records) -> dict[str, int]:
    """Partition -> number of unclean elections by operators; only partitions that had one."""
    return {str(p): record.lineage for p, record in sorted(records.items()) if record.lineage}


def problems(
    records: Records,
    registrations: Registrations,
    waiting: str,
    drained: Collection[str] = (),
    facts: Mapping[str, NodeReplicaFacts | None] | None = None,
    unread: Mapping[str, str] | None = None,
) -> list[str]:
    """The problems of the cluster, a sentence each; empty when every partition is online on all its replicas, and no
    disk is full.

    `facts`: the facts of live nodes, which give the node and the reason. `unread`: path -> why a metastore document
    cannot be read.
    """
    found = [f"bucket type default: {waiting}"] if waiting else []
    found += unreadable(records, unread or {})
    found += [
        f"node {row.name} is {row.state}: {row.reason}"
        for row in node_rows(records, registrations)
        if row.state != "live" and not (row.name in drained and not row.replicas)
    ]
    found += [each for sentences in writes_refused(records, facts or {}).values() for each in sentences]
    offline = [r for _, r in sorted(records.items()) if r.status is not PartitionStatus.ONLINE]
    found += [f"partition {r.partition} is {r.status.value}: {r.reason}" for r in offline]
    below = below_min_isr(records)
    if below:
        found.append(f"{CODES[Code.MIN_ISR].words} in {_some(below)}")
    under = under_replicated(records)
    if under:
        found.append(f"replicas are out of sync in {_some(under)}")
    found += _out_of_sync(records, facts or {})
    if len(found) > PROBLEMS_MAX:
        found[PROBLEMS_MAX:] = [f"and {len(found) - PROBLEMS_MAX} more; `isthmus partition list` shows all"]
    return found


def unreadable(records: Records, unread: Mapping[str, str]) -> list[str]:
    """Metastore documents that cannot be read, a sentence each. `unread`: path -> why."""
    found = [_unread(path, why, records) for path, why in sorted(unread.items())]
    if len(found) > PROBLEMS_MAX:
        found[PROBLEMS_MAX:] = [f"nothing is decided by {len(found) - PROBLEMS_MAX} more documents"]
    return found


def _unread(path: str, why: str, records: Records) -> str:
    """The problem of an unreadable document; of a record that could never be read, also its effect on this node."""
    number = path.removeprefix("/p/")
    never = path.startswith("/p/") and all(str(partition) != number for partition in records)
    serves = ", and this node has never read it and refuses requests for its keys" if never else ""
    return f"nothing is decided by what cannot be read{serves}: {why}"


def writes_refused(records: Records, facts: Mapping[str, NodeReplicaFacts | None]) -> dict[str, list[str]]:
    """Node that refuses writes, since space, inodes or descriptors are short -> why, a sentence for each reason."""
    found = {node: _reasons(node, records, facts[node] or {}) for node in sorted(facts)}
    refused = {
        node: [_sentence(node, where, why) for why, where in reasons.items() if _is_refusal(why)]
        for node, reasons in found.items()
    }
    return {node: sentences for node, sentences in refused.items() if sentences}


def _out_of_sync(records: Records, facts: Mapping[str, NodeReplicaFacts | None]) -> list[str]:
    """Other reasons why replicas are not in sync, a sentence for each node and reason. A node with such replicas that
    did not answer is named, too."""
    found: list[str] = []
    for node, reported in sorted(facts.items()):
        if reported is None:
            lacking = [p for p, r in sorted(_held(node, records).items()) if all(m.node != node for m in r.isr)]
            if lacking:
                found.append(f"node {node} did not answer: why it is out of sync in {_some(lacking)} is not known")
            continue
        reasons = _reasons(node, records, reported)
        found += [_sentence(node, where, why) for why, where in reasons.items() if not _is_refusal(why)]
    return found


def _held(node: str, records: Records) -> Records:
    """The records of the partitions of which a node is to have a replica."""
    return {p: r for p, r in records.items() if node in r.replicas and node not in r.removing}


def _reasons(node: str, records: Records, reported: NodeReplicaFacts) -> dict[str, list[int]]:
    """Why a node's replicas are out of sync, or refuse writes -> their partitions."""
    held, found = _held(node, records), dict[str, list[int]]()
    for p, replica in sorted(reported.items()):
        record = held.get(p)
        if record is not None and (_is_refusal(replica.reason) or Member(node, replica.gen) not in record.isr):
            found.setdefault(replica.reason, []).append(p)
    return found


def _is_refusal(reason: str) -> bool:
    return reason.startswith(OutOfStorage.reason)


def _sentence(node: str, where: list[int], reason: str) -> str:
    return f"node {node}, {_some(where)}: {reason}"


def silent(facts: Mapping[str, NodeReplicaFacts | None]) -> list[str]:
    """Nodes that did not answer though their session is alive, a sentence each. This may be over in a moment, so it is
    no problem."""
    return [silent_sentence(node) for node, reported in sorted(facts.items()) if reported is None]


def state_of(balancing: Mapping[str, Any] | None, problems: list[str], moving: str = "") -> tuple[str, str]:
    """The cluster's state in a word, and the reason.

    `balancing`: the controller's leader balance, None when the controller does not answer. Partitions are elected one
    by one while leaders move: then this is the state, not a problem. `moving`: the progress of reassignments.
    """
    if balancing is not None and balancing["state"] == "leadership-balancing":
        return "leadership-balancing", str(balancing["reason"])
    if problems:
        return "degraded", problems[0]
    if moving:
        return "placement-changing", moving
    return "online", ""


def _some(numbers: list[int]) -> str:
    noun = "partition" if len(numbers) == 1 else f"{len(numbers)} partitions:"
    return f"{noun} {', '.join(map(str, numbers[:8]))}" + (", ..." if len(numbers) > 8 else "")


def partition_rows(
    records: Records,
    registrations: Registrations,
    facts: Mapping[str, NodeReplicaFacts | None],
    unread: Mapping[str, str] | None = None,
) -> list[PartitionRow]:
    """Every partition, by id, with the facts of its replicas (`facts`, by node). A partition whose record is `unread`
    (by path) appears as it was last read, with the reason."""
    return [
        _partition_row(record, registrations, facts, (unread or {}).get(f"/p/{record.partition}"))
        for _, record in sorted(records.items())
    ]


def _partition_row(
    record: PartitionRecord,
    registrations: Registrations,
    facts: Mapping[str, NodeReplicaFacts | None],
    unread: str | None,
) -> PartitionRow:
    reported = {node: _facts_of(facts.get(node), record.partition) for node in record.replicas}
    leader = None if record.leader is None else record.leader.node
    lead = None if leader is None else reported.get(leader)
    states = [_replica_row(record, node, reported[node], lead, registrations, facts) for node in record.replicas]
    lags = [state.lag for state in states]
    known = [lag for lag in lags if lag is not None]
    return PartitionRow(
        partition=record.partition,
        bucket_type=record.bucket_type,
        index=record.index,
        leader=leader,
        replicas=list(record.replicas),
        adding=list(record.adding),
        removing=list(record.removing),
        isr=sorted(m.node for m in record.isr),
        elr=sorted(m.node for m in record.elr),
        min_isr=record.effective_min_isr,
        epoch=record.epoch,
        leo=None if lead is None else lead.leo,
        hw=None if lead is None else lead.hw,
        applied=None if lead is None else lead.applied,
        lag=max(known) if len(known) == len(lags) else None,
        status=record.status.value,
        reason=f"nothing is decided, its record cannot be read: {unread}" if unread else _reason(record, lead, states),
        replica_states=states,
    )


def _facts_of(facts: NodeReplicaFacts | None, partition: int) -> ReplicaFacts | None:
    return None if facts is None else facts.get(partition)


def _replica_row(
    record: PartitionRecord,
    node: str,
    reported: ReplicaFacts | None,
    lead: ReplicaFacts | None,
    registrations: Registrations,
    facts: Mapping[str, NodeReplicaFacts | None],
) -> ReplicaRow:
    in_sync = any(m.node == node if reported is None else m == Member(node, reported.gen) for m in record.isr)
    if reported is not None:
        return ReplicaRow(
            node=node,
            role=reported.role,
            epoch=reported.epoch,
            gen=reported.gen,
            leo=reported.leo,
            durable=reported.durable,
            hw=reported.hw,
            applied=reported.applied,
            lag=None if lead is None else max(0, lead.leo - reported.leo),
            in_sync=in_sync,
            reason=reported.reason,
        )
    if node not in registrations:
        reason = "the node is gone"
    elif facts.get(node) is None:
        reason = "the node did not answer"
    else:
        reason = "the node has not made its copy yet"
    return ReplicaRow(node, None, None, None, None, None, None, None, None, in_sync, reason)


def _reason(record: PartitionRecord, lead: ReplicaFacts | None, states: list[ReplicaRow]) -> str:
    """The reason of a partition's state."""
    if record.status is not PartitionStatus.ONLINE:
        return record.reason or f"{record.status.value}: the controller has not acted yet"
    found = []
    if len(record.isr) < record.effective_min_isr:
        found.append(f"writes are refused: {len(record.isr)} in sync, min-ISR is {record.effective_min_isr}")
    if lead is not None and not lead.ready:
        found.append(f"not served yet: {lead.reason}")
    elif lead is not None and lead.reason.startswith(OutOfStorage.reason):
        found.append(lead.reason)
    if record.adding or record.removing:
        found.append(lead.changing if lead is not None and lead.changing else "its replicas change")
    out = {} if lead is None else lead.out
    found += [
        f"{state.node} is out of sync: {'; '.join(filter(None, (out.get(state.node), state.reason)))}"
        for state in states
        if not state.in_sync and state.node not in record.removing
    ]
    return "; ".join(found) or "all in sync"
