"""Founding and returning: which partitions there are, and whether this directory's copies of them are honest.

A new cluster gets the partitions of its `default` bucket type here. A copy that is new to this directory, that
lost something durable, or that cannot be believed after a power loss takes a new gen before the node registers, so
that nobody elects it for what it no longer holds (docs/protocol.md R-GEN).
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from repl.identity import Identity
from repl.isr.placement import computed
from repl.metastore.port import Metastore
from repl.model.errors import LocalFault
from repl.model.keys import DEFAULT_BUCKET_TYPE
from repl.model.record import Member, PartitionRecord
from repl.replog.port import RecoveredPartition

log = structlog.get_logger(__name__)


async def settle(
    metastore: Metastore,
    identity: Identity,
    recovered: Mapping[int, RecoveredPartition],
    *,
    node: str,
    cluster: str,
    cluster_uuid: bytes,
    boot_id: str,
    durability: str,
    partition_count: int,
    emptied: str = "",
) -> Mapping[int, PartitionRecord]:
    """The cluster's partitions, by id, after this directory's gens are settled and durable. `emptied` says what of an
    earlier run is gone altogether (log or store), if anything: then no copy here is what it was. Raises LocalFault
    when the cluster is another node's, and what the metastore raises."""
    records = await metastore.records()
    if not records:
        records = await _found(metastore, identity, node, cluster_uuid, boot_id, partition_count)
    strangers = sorted({n for r in records.values() for n in r.replicas if n != node})
    if strangers:
        raise LocalFault(
            f"cluster {cluster!r} is run by node {', '.join(strangers)}: this version runs one node a cluster; "
            "give this node another node.cluster, or start that node"
        )
    doubted = _doubted(records, identity, recovered, boot_id, durability, emptied)
    gens: dict[int, int] = {}
    if doubted:
        gen = await metastore.allocate_gen()
        gens = dict.fromkeys(doubted, gen)
        for partition, reason in doubted.items():
            log.warning("identity.new_gen", partition=partition, gen=gen, reason=reason)
    identity.adopt(cluster_uuid, node, boot_id, gens)
    return records


def _doubted(
    records: Mapping[int, PartitionRecord],
    identity: Identity,
    recovered: Mapping[int, RecoveredPartition],
    boot_id: str,
    durability: str,
    emptied: str,
) -> dict[int, str]:
    """Partition -> why its copy here must not count as the one that the record means."""
    power_lost = identity.boot_id != boot_id and not identity.clean
    doubted: dict[int, str] = {}
    for partition in records:
        if identity.partition(partition) is None:
            doubted[partition] = "the data directory is new to it"
        elif emptied:
            doubted[partition] = emptied
        elif partition in recovered and recovered[partition].damage:
            doubted[partition] = recovered[partition].damage
        elif power_lost and durability == "async":
            doubted[partition] = "the machine stopped while durability was async"
    return doubted


async def _found(
    metastore: Metastore, identity: Identity, node: str, cluster_uuid: bytes, boot_id: str, partition_count: int
) -> Mapping[int, PartitionRecord]:
    """Create the partitions of the `default` bucket type."""
    gen = await metastore.allocate_gen()
    # The gen is on disk before the records name it: a crash between the two leaves a cluster that is still
    # new, not one whose only copy is unknown.
    identity.adopt(cluster_uuid, node, boot_id, dict.fromkeys(range(partition_count), gen))
    await metastore.create_records(
        [
            PartitionRecord(
                partition=index,
                bucket_type=DEFAULT_BUCKET_TYPE.decode(),
                index=index,
                partition_count=partition_count,
                replicas=replicas,
                isr=frozenset(Member(n, gen) for n in replicas),
                reason="new",
            )
            for index, replicas in enumerate(computed(partition_count, 1, [node]))
        ]
    )
    return await metastore.records()
