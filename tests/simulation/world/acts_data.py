"""What operators do to all keys of a range: folds, and reaps of single keys."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import quote

from tests.simulation.world.acts_queues import BUCKET, kinds, receivers
from tests.simulation.world.admin import act, ask, look
from tests.simulation.world.clusters import WorldCluster
from tests.simulation.world.history import Erasure
from tests.simulation.world.node import HTTP_PORT
from tests.simulation.world.sessions import RawSession
from tests.simulation.world.steps import Doing, StepKind, step

PAGES_MAX: Final = 50
"""Pages of a fold of one partition; the keys of a world fit into a few."""

LARGE_BYTES: Final = 60_000
LARGE_COUNT: Final = 30
"""Together nearly twice what the log of a node keeps (`clusters.TEMPLATE`)."""

FOLD: Final = "POST /admin/folds"


def reaped(doing: Doing, bucket_types: Iterable[str]) -> None:
    """Tombstones of these bucket types may be gone from now on."""
    for name in bucket_types:
        doing.world.history.rules_of(name).reaps = True


def erased(doing: Doing, cluster: WorldCluster) -> None:
    """An operator begins to delete keys."""
    doing.world.history.erasures.append(Erasure(cluster.name, doing.world.kernel.now_ns))


async def _fold(doing: Doing, kind: str, *, acts: bool = True, **more: Any) -> None:
    """All pages of a fold over all partitions, as the command line asks for them. It ends where one is refused."""
    cluster, chance = doing.cluster(), doing.chance
    if kind == "repl-keys":
        if not receivers(doing, cluster):
            return
        more["queue"] = chance.choice(receivers(doing, cluster))
    scope: dict[str, Any] = chance.choice(
        [{}, {"bucket": BUCKET}, {"bucket": BUCKET, "key_from": "k1", "key_to": "k3"}, {"bucket": "other"}]
    )
    found = await look(doing, cluster, "/admin/partitions")
    numbers = [(row["partition"], row["bucket_type"]) for row in (found or {}).get("partitions") or ()]
    dry_run = acts and chance.random() < 0.2
    body: dict[str, Any] = {"kind": kind, **scope, **more}
    if acts:
        body["dry_run"] = dry_run
    if kind == "erase-keys" and not dry_run:
        erased(doing, cluster)
    if kind == "reap-tombs" and not dry_run:
        reaped(doing, [bucket_type for _, bucket_type in numbers])
    await _pages(doing, cluster, [number for number, _ in numbers], body)


async def _pages(doing: Doing, cluster: WorldCluster, numbers: list[int], body: dict[str, Any]) -> None:
    for partition in numbers:
        cursor = None
        for _ in range(PAGES_MAX):
            answer = await act(doing, cluster, "/admin/folds", partition=partition, next=cursor, **body)
            if answer is None or not answer.done:
                return
            cursor = answer.body.get("next")
            if cursor is None:
                break


@step(StepKind.ACT, weight=6, covers=(FOLD,))
async def fold_repl_keys(doing: Doing) -> None:
    """References to all keys go into a queue."""
    await _fold(doing, "repl-keys")


@step(StepKind.ACT, weight=1, covers=(FOLD,))
async def fold_erase_keys(doing: Doing) -> None:
    """All keys are deleted."""
    await _fold(doing, "erase-keys")


@step(StepKind.ACT, weight=3, covers=(FOLD,))
async def fold_reap_tombs(doing: Doing) -> None:
    """All tombstones are reaped that may be."""
    await _fold(doing, "reap-tombs")


@step(StepKind.ACT, weight=3, covers=(FOLD,))
async def fold_repair_keys(doing: Doing) -> None:
    """Keys whose rows differ from each other are mended."""
    await _fold(doing, "repair-keys")


@step(StepKind.ACT, weight=3, covers=(FOLD,))
async def fold_reads(doing: Doing) -> None:
    """A fold that changes nothing."""
    await _fold(doing, doing.chance.choice(["find-keys", "find-tombs", "object-stats", "list-buckets"]), acts=False)


RIAK_FOLDS: Final = {"erase": "", "rangerepair": "", "rangerepl": "/queuename/{queue}", "reap": ""}
"""Riak's folds that change something -> what is behind the bucket in their paths."""


@step(
    StepKind.ACT,
    weight=3,
    covers=tuple(
        f"GET /{fold}{of_type}/buckets/{{bucket}}{rest}"
        for fold, rest in RIAK_FOLDS.items()
        for of_type in ("", "/types/{type}")
    ),
)
async def riak_fold(doing: Doing) -> None:
    """One of Riak's folds over the clients' bucket, by a GET, at any node of a cluster."""
    cluster, chance = doing.cluster(), doing.chance
    # Most often one that takes nothing away: erasures leave less for everybody else.
    fold = chance.choice(["rangerepl", "rangerepl", "rangerepair", "reap", "reap", "erase"])
    kind = chance.choice(kinds(doing))
    queues = receivers(doing, cluster)
    if not cluster.running or (fold == "rangerepl" and not queues):
        return
    document: dict[str, Any] = chance.choice([{}, {"key_range": {"start": "k1", "end": "k3"}}])
    if fold in ("erase", "reap") and chance.random() < 0.7:
        document["change_method"] = chance.choice(["local", {"job_id": 7}])
        if fold == "erase":
            erased(doing, cluster)
        else:
            reaped(doing, [kind])
    typed = "" if kind == "default" and chance.random() < 0.5 else f"/types/{kind}"
    rest = RIAK_FOLDS[fold].format(queue=chance.choice(queues) if queues else "")
    query = quote(b64encode(json.dumps(document).encode()))
    path = f"/{fold}{typed}/buckets/{BUCKET}{rest}?filter={query}"
    answer = await ask(doing, chance.choice(cluster.running), path, port=HTTP_PORT)
    doing.tell(f"{fold} {document}: {answer}")


@step(StepKind.ACT, weight=6, covers=("POST /admin/reaps",))
async def kv_reap(doing: Doing) -> None:
    """One key."""
    kind, key = doing.chance.choice(kinds(doing)), f"k{doing.chance.randrange(6)}"
    reaped(doing, [kind])
    await act(doing, doing.cluster(), "/admin/reaps", bucket_type=kind, bucket=BUCKET, key=key)


@step(StepKind.ACT, weight=2)
async def write_much(doing: Doing) -> None:
    """A client writes more than the logs keep, so that their oldest files go."""
    writing = doing.world.clients.loop.create_task(_write_much(doing), name=doing.name)
    while not writing.done():
        await asyncio.sleep(0.1)
    writing.result()


async def _write_much(doing: Doing) -> None:
    workload = doing.world.workload
    session = doing.chance.choice([each for each in workload.sessions if isinstance(each, RawSession)])
    async with session.lock:
        for _ in range(LARGE_COUNT):
            key = doing.chance.choice(workload.keys)
            await session.read(key)
            value = session.value(doing.chance)._replace(padding=LARGE_BYTES)
            known = session.known.get(key)
            await session.put(key, value, known[-1] if known else None)
