"""Full-sync between two clusters of the mesh, with the product's comparison, recalls and pushes.

The rows are compared as a check compares them at its second read; what it would queue is pushed at once, as a sink
pushes a batch of references that it fetched.
"""

from __future__ import annotations

from isthmus.aae.exchange.compare import (
    BehindSide,
    ComparedRow,
    DifferenceKind,
    KeyDifference,
    Rows,
    compare,
    reaped_row,
)
from isthmus.repl.coordinator.tombstone_writes import ReapBatch
from isthmus.repl.model.entry import decode_key_row
from isthmus.repl.model.keys import Key, key_hash
from isthmus.repl.model.requests import PushOutcome, PushResult
from tests.simulation.mesh.cluster import BUCKET, TYPE, Cluster, P

TRIES = 3
"""How often a push that is refused as retryable is repeated, each time with the object as it is then."""


def rows_of(cluster: Cluster) -> Rows:
    """The rows of all keys, with the remembered clocks of reaped ones."""
    found: Rows = {
        name: reaped_row(*name, clock) for name, clock in cluster.store.reaped_clocks(P).items() if name[0] == BUCKET
    }
    for key, _ in cluster.shown():
        data = cluster.store.key_row(P, key_hash(BUCKET, key), BUCKET, key)
        assert data is not None
        row = decode_key_row(data)
        found[BUCKET, key] = ComparedRow(BUCKET, key, row.clock, row.hash64, row.last_modified_ms + 1, row.tombstone)
    return found


def settle(cluster: Cluster) -> None:
    """Apply and notify everything."""
    cluster.apply(len(cluster.log))
    cluster.notify(len(cluster.unnotified))


def recall(cluster: Cluster, key: bytes) -> bool:
    """Write the tombstone of a reaped key once more, as `repl.coordinator.tombstone_recall` does."""
    reaps = ReapBatch(cluster.batch())
    done = reaps.recall(Key(TYPE, BUCKET, key), key_hash(BUCKET, key))
    cluster.append(reaps.batch)
    settle(cluster)
    return done


def push(source: Cluster, sink: Cluster, key: bytes) -> PushOutcome:
    """Push the key as the source holds it."""
    for _ in range(TRIES):
        payload = source.store.object(P, BUCKET, key)
        assert payload is not None
        ((answer, _),) = sink.push([(key, payload, False)], source.uuid)
        settle(sink)
        if isinstance(answer, PushResult):
            return answer.outcome
    raise AssertionError(f"refused again and again: {answer!r}")


def full_sync(source: Cluster, sink: Cluster) -> list[KeyDifference]:
    """A check of `source` with `sink`: its differences, before what it can repair was pushed."""
    for cluster in (source, sink):
        settle(cluster)
    found = compare(rows_of(source), rows_of(sink))
    for each in found:
        if each.side is BehindSide.SOURCE or each.kind is DifferenceKind.CORRUPT:
            continue
        assert each.source is not None
        if each.source.reaped:
            assert recall(source, each.key), "what is compared as reaped can be recalled"
        push(source, sink, each.key)
    return found
