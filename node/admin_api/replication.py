"""Replication of the whole cluster in the admin API: lag, ledgers, and one key explained.

Asks every node and shows the joined answers; decides nothing. docs/replication.md explains the terms.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from isthmus.config.settings import FullSyncSettings, PeerSettings
from isthmus.node.http.application import Request, json_reply
from isthmus.node.http.health import NodeStatus
from isthmus.node.http.responses import Reply, RequestRefused
from isthmus.node.http.router import Router, decode_segment
from isthmus.node.services.container import NodeServices
from isthmus.node.services.explain_key import joined
from isthmus.node.services.membership import not_alive
from isthmus.node.services.queue_query import KEY, LAGS, LEDGERS, ExplainKey, ReadLags, ReadLedgers
from isthmus.node.services.remote_lookup import TRIES_MAX, first_known_side, other_side, with_other_sides
from isthmus.node.services.replication_lag import lag_rows, ledger_rows, received_rows
from isthmus.node.services.sink_query import SINK
from isthmus.queues.riak_origin import RIAK_CLUSTER, RIAK_NAME
from isthmus.repl.model.errors import NotReady
from isthmus.repl.model.keys import DEFAULT_BUCKET_TYPE, Key
from isthmus.repl.model.vclock import decode_clock


class ReplicationAdmin:
    """Routes over all nodes of the cluster."""

    def __init__(self, services: NodeServices, router: Router[Callable[..., Any]], status: NodeStatus) -> None:
        self._services = services
        self._status = status
        router.add("GET", "/admin/lag", self.lag)
        router.add("GET", "/admin/ledger", self.ledger)
        router.add("GET", "/admin/explain", self.explain)

    async def lag(self, _request: Request) -> Reply:
        """How far each other cluster is behind, by queue and bucket type; null where a node does not answer.

        `lag`: rows. `seconds`: age of the oldest change that is not acknowledged, in the worst partition; where it is
        null, `at_least_s` is the age in the worst one that is known. `objects`: keys whose newest change is not
        acknowledged; `bytes`: their size; `in_flight`: changes under lease. `reason`: what delays changes, or why a
        number is null. `unknown_partitions`: those that no node reports. `proven_ms`: as of when full-sync found all of
        this cluster's changes there. With `both_ways` the clusters are to be equal, and were so at `equal_ms` (null:
        never). `proofs_unknown_at`: nodes that do not answer and may have newer proofs.
        `ledger_off`: changes of the queue that disappeared without being accounted for.
        """
        return json_reply(await self.lag_document())

    async def lag_document(self) -> dict[str, Any]:
        """The answer to `GET /admin/lag`."""
        lags = await self._services.query.ask(LAGS, ReadLags(), self._nodes())
        rows = lag_rows(lags.by_node, self._services.controller.records)
        return {"lag": msgspec.to_builtins(rows), "at_ms": self._services.time.wall_ms()}

    async def ledger(self, _request: Request) -> Reply:
        """Changes sent to and received from each other cluster since the nodes started, and whether the sums match.

        `ledger`: rows with `direction` `sent` (for each queue) or `received` (for each source cluster and queue).
        `closes`: whether the sums match, null if that is not known. `state`: `closed`, `no-sink` (no cluster has
        fetched yet), `unknown`, or `alarm` (changes are lost, or more is accounted for than there was), with the
        `reason`. `unknown`: nodes that do not answer; numbers that need them are null.
        """
        query, nodes = self._services.query, self._nodes()
        ledgers, received, lags = await asyncio.gather(
            query.ask(LEDGERS, ReadLedgers(failures=True), nodes),
            query.ask(SINK, None, nodes),
            query.ask(LAGS, ReadLags(), nodes),
        )
        owners = {
            queue.queue: (queue.cluster, queue.uuid)
            for answer in lags.by_node.values()
            for queue in (() if answer is None else answer.queues)
            if queue.uuid
        }
        rows = [
            *ledger_rows(ledgers.by_node, owners, self._services.controller.records),
            *received_rows(received.by_node),
        ]
        return json_reply({"ledger": rows, "unknown": sorted(ledgers.unknown)})

    async def explain(self, request: Request) -> Reply:
        """One key as its leader, all queues, and the clusters of full-sync have it.

        ?type, ?bucket and ?key are percent-encoded twice if they are not plain text. Of each node's newest check:
        whether the key has changed here since (`changed_since`), and who suspended it (`suspended`). `dead_letters`:
        what sinks here refused of the key. `reaped_clock`: the clock of its tombstone, if that was reaped here and is
        remembered. `unknown`: nodes that do not answer or are down, and why; what they have of the key is missing.
        """
        bucket, name = request.query.get("bucket", ""), request.query.get("key", "")
        if not bucket or not name:
            raise RequestRefused(400, "bad-query", "name the key: ?type=T&bucket=B&key=K")
        kind = request.query.get("type")
        key = Key(DEFAULT_BUCKET_TYPE if kind is None else kind.encode(), _bytes(bucket), _bytes(name))
        self._services.coordinator.routes.check(key.bucket_type)
        answers, unknown = await self._services.query.ask(KEY, ExplainKey.of(key), self._nodes())
        down = self._services.membership.known_nodes() - answers.keys()
        if not any(answers.values()):
            raise NotReady("no node answers")
        answer = joined(answers, self._names())
        found = answer["object"]
        clock = None if found is None else decode_clock(bytes.fromhex(found["clock"]))
        reaped = None if not answer["reaped_clock"] else decode_clock(bytes.fromhex(answer["reaped_clock"]))
        peers = [peer.settings for peer in self._services.fullsync.scheduler.peers.values()]

        def looks(one: FullSyncSettings) -> list[Callable[[], dict[str, Any]]]:
            ways = [PeerSettings(url, one.queue, one.cluster, one.token_file) for url in one.urls.split(",")]
            return [
                partial(
                    other_side,
                    way.url,
                    key,
                    clock,
                    self._services.credentials.access_to(way),
                    known=answer["known"],
                    reaped=reaped,
                )
                for way in ways[:TRIES_MAX]
            ]

        sides = await asyncio.gather(
            *(asyncio.to_thread(first_known_side, looks(one), lambda: not self._status.stopping) for one in peers)
        )
        others = [
            {"fullsync": one.name, "urls": one.urls.split(","), **side} for one, side in zip(peers, sides, strict=True)
        ]
        return json_reply(
            {
                **with_other_sides(answer, others),
                "unknown": {**not_alive(down), **unknown},
                "at_ms": self._services.time.wall_ms(),
            }
        )

    def _names(self) -> dict[str, str]:
        """Names of clusters by uuid, as far as this node knows them."""
        names = {
            self._services.cluster_uuid.hex(): self._services.settings.node.cluster,
            RIAK_CLUSTER.hex(): RIAK_NAME,
        }
        names |= {source.cluster.hex(): source.cluster_name for source in self._services.sink.sources()}
        return names | self._services.queue_acts.owners()

    def _nodes(self) -> set[str]:
        return self._services.membership.live_nodes()


def _bytes(segment: str) -> bytes:
    return decode_segment(segment.replace("+", "%2B").encode())
