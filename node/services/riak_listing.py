"""Riaks and their seeds, as operators see them."""

from __future__ import annotations

from collections import Counter

from isthmus.config.settings import RiakPeerSettings
from isthmus.node.nouns.riak import RiakList, RiakRow, SeedRow
from isthmus.node.nouns.rows import SignedAct
from isthmus.sink.riak_peers import links_of
from isthmus.sink.riak_seeds import SeedRecord
from isthmus.sink.service import Sink


def riaks_of(sink: Sink, node: str, now_ms: int) -> RiakList:
    """The Riaks that `sink`, of `node`, fetches from."""
    seeds = {record.riak: record for record in sink.seeds.records()}
    return RiakList(node, [_row(sink, peer, seeds.get(peer.name), now_ms) for peer in sink.riaks()])


def _row(sink: Sink, peer: RiakPeerSettings, seed: SeedRecord | None, now_ms: int) -> RiakRow:
    entry = sink.riak_entries().get(peer.name)
    names = links_of(peer)
    present = set(sink.link_names())
    states = [sink.link_state(name) for name in names if name in present]
    counts = [found.link.riak for found in states if found.link.riak is not None]
    unusable = sink.state().unusable
    return RiakRow(
        name=peer.name,
        queue=peer.queue,
        urls=peer.urls.split(","),
        bucket_types=peer.bucket_types,
        from_="config" if entry is None else "operator",
        set=None if entry is None else SignedAct(entry.by, entry.at_ms, entry.reason),
        user=peer.user,
        workers=peer.workers,
        bytes_per_second=peer.rate_limit_bytes,
        objects_per_second=peer.object_rate_limit_count,
        states=dict(Counter(found.state for found in states)),
        unusable=next((unusable[name] for name in names if name in unusable), ""),
        left_out=sum(one.left_out for one in counts),
        answers_lost=sum(one.answers_lost for one in counts),
        lost=sum(one.lost for one in counts),
        seed=None if seed is None else _seed(seed, now_ms, interrupted=sink.seeds.is_interrupted(seed)),
    )


def _seed(seed: SeedRecord, now_ms: int, *, interrupted: bool) -> SeedRow:
    return SeedRow(
        state="interrupted" if interrupted else seed.state,
        way=seed.way,
        node=seed.node,
        bucket_type=seed.bucket_type,
        bucket=seed.bucket,
        fraction=1.0 if seed.state == "done" else seed.fraction(),
        left_ms=None if interrupted else seed.left_ms(now_ms),
        buckets=seed.buckets,
        buckets_done=seed.buckets_done,
        current=seed.current,
        current_keys=seed.current_keys,
        current_done=seed.current_done,
        keys=seed.keys,
        compared=seed.compared,
        missing=seed.missing,
        refused=seed.refused,
        notes=list(seed.notes),
        notes_left_out=seed.notes_left_out,
        error=f"node {seed.node} is not live: order the seed again" if interrupted else seed.error,
        began_ms=seed.began_ms,
        changed_ms=seed.changed_ms,
        ended_ms=seed.ended_ms,
        set=SignedAct(seed.by, seed.at_ms, seed.reason),
    )
