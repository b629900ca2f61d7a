"""Settling in at a start: whether this directory's copies are honest, and under which gens they are told of.

A copy that lost something durable, or that cannot be believed after a power loss, takes a new gen before the node
registers, so that nobody elects it for what it no longer holds (docs/protocol.md R-GEN). A copy that is yet to be made
takes the directory's spare gen. Which partitions there are is the controller's affair (`repl.controller`); how a
replica comes to be is `repl.attaching`'s.
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from repl.identity import Identity
from repl.metastore.port import Metastore
from repl.model.record import PartitionRecord
from repl.replog.port import RecoveredPartition
from repl.store.port import Store

log = structlog.get_logger(__name__)


async def settle(
    metastore: Metastore,
    identity: Identity,
    recovered: Mapping[int, RecoveredPartition],
    store: Store,
    *,
    node: str,
    cluster_uuid: bytes,
    boot_id: str,
    durability: str,
) -> Mapping[int, PartitionRecord]:
    """The cluster's records, by partition, after this directory's gens are settled and durable. Raises LocalFault,
    and what the metastore raises.

    The spare gen stays for the life of the directory: a copy that was not noted here never held anything, so nothing
    that casts doubt on those that were says anything of it."""
    records = await metastore.records()
    doubted = _doubted(identity, recovered, store, _wholly_doubted(identity, boot_id, durability))
    spare = 0 if identity.spare else await metastore.allocate_gen()
    gens: dict[int, int] = {}
    if doubted:
        gen = await metastore.allocate_gen()
        gens = dict.fromkeys(doubted, gen)
        for partition, reason in doubted.items():
            log.warning("identity.new_gen", partition=partition, gen=gen, reason=reason)
    known, again, deleting = {*identity.partitions()}, identity.gens(), {*identity.condemned()}
    for partition, record in records.items():
        if node in record.replicas and partition not in known and partition not in deleting:
            gens[partition] = again.get(partition) or spare or identity.spare
    identity.adopt(cluster_uuid, node, boot_id, gens, spare)
    return records


def _wholly_doubted(identity: Identity, boot_id: str, durability: str) -> str:
    """Why no copy of this directory may count as what it was; "" when they may."""
    if identity.doubt:
        return identity.doubt
    if durability == "async" and identity.boot_id not in ("", boot_id) and not identity.clean:
        return "the machine stopped while durability was async"
    return ""


def _doubted(
    identity: Identity, recovered: Mapping[int, RecoveredPartition], store: Store, wholly: str
) -> dict[int, str]:
    """Partition -> why its copy here must not count as the one that the record means. One that is far is out of the
    guard already."""
    doubted: dict[int, str] = {}
    for partition in identity.partitions():
        if wholly:
            doubted[partition] = wholly
        elif partition in recovered and recovered[partition].damage:
            doubted[partition] = recovered[partition].damage
        elif partition in recovered and partition not in store.far.marks():
            start, applied = recovered[partition].start, store.applied(partition).offset
            believed = min(applied, store.durable_floor(partition)) if store.needs_replay() else applied
            if believed < start:
                doubted[partition] = f"the store ends at {believed} and the log begins at {start}"
    return doubted
