"""Plan a seed: ranges of segments, estimated objects and bytes, and the position of the queue; and control that queue.

Planning sends requests to both clusters and to the queue's, and changes nothing; it is all that `isthmus reconcile seed
--dry-run` does. QueueHandOver registers, holds, moves and resumes the source's queue through the admin API.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import quote

from isthmus.aae.reconcile.client import Credentials, ReplicaDirectory
from isthmus.aae.reconcile.compare_range import SideSpec, plan_of
from isthmus.aae.reconcile.key_rows import parsed
from isthmus.aae.reconcile.options import parse_options
from isthmus.aae.reconcile.row_reader import RangeStream, plan_ranges
from isthmus.aae.reconcile.seed_tasks import SeedChunk
from isthmus.aae.row_stream.blobs import Blobs
from isthmus.aae.row_stream.wire import Consistency, RowsRequest
from isthmus.repl.http.client import HttpPeer
from isthmus.repl.model.errors import BadInput, IsthmusError, PeerFault

SERVING: Final = "serving"
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
TIMEOUT_MS: Final = 20_000


class AdminTransport(Protocol):
    """Requests to a node's admin listener, with JSON objects as answers. Raises IsthmusError for failures."""

    def get(self, path: str) -> dict[str, Any]:
        """The object at a path."""

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The object that answers."""


class AdminConnection:
    """An AdminTransport over HTTP for programs; the command line has its own. Raises BadInput for files, PeerFault for
    requests."""

    def __init__(self, url: str, credentials: Credentials) -> None:
        self._peer = HttpPeer(url, 1, credentials.access())

    def get(self, path: str) -> dict[str, Any]:
        """See AdminTransport."""
        return _object(self._peer.get(path, timeout_ms=TIMEOUT_MS, limit_bytes=ANSWER_BYTES_MAX))

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """See AdminTransport."""
        data = json.dumps(body).encode()
        return _object(
            self._peer.post(
                path, data, media_type="application/json", timeout_ms=TIMEOUT_MS, limit_bytes=ANSWER_BYTES_MAX
            )
        )


class QueueStatus(NamedTuple):
    """A queue over all nodes: uuid of its owner ("": none), waiting changes, and the age of the oldest; None if a node
    or a partition's leader does not report it."""

    owner: str
    waiting: int | None
    oldest_age_ms: int | None


class QueueHandOver:
    """One queue of the source. `filter`: its filter if it is registered here; `reason` is shown to operators."""

    def __init__(self, admin: AdminTransport, queue: str, by: str, filter: str = "any") -> None:
        self._admin = admin
        self.queue = queue
        self._by = by
        self._filter = filter
        self._path = f"/admin/queues/{quote(queue, safe='')}"

    def check(self, source: bytes, target: bytes) -> dict[str, Any] | None:
        """The queue's listing, None if it does not exist. Raises BadInput if the listener is not of the source, or the
        queue belongs to another cluster than the target."""
        answer = self._admin.get("/admin/cluster")
        if answer.get("cluster_uuid") != source.hex():
            raise BadInput(f"the admin listener belongs to cluster {answer.get('cluster')}, which is not the source")
        queues = self._admin.get("/admin/queues").get("queues", [])
        found: dict[str, Any] | None = next((one for one in queues if one.get("name") == self.queue), None)
        owner = None if found is None else found.get("owner")
        if owner is not None and owner.get("uuid") != target.hex():
            raise BadInput(
                f"queue {self.queue} belongs to cluster {owner.get('cluster')}, not to the target: take another, or"
                f" `isthmus queue release {self.queue}`"
            )
        return found

    def hold(self, found: Mapping[str, Any] | None, positions: Mapping[int, int], reason: str) -> bool:
        """Register the queue at `positions` unless it exists, and suspend serving. Returns True if others had suspended
        it: then it stays suspended at the end. A suspension with this `reason` is of an earlier attempt."""
        if found is None:
            wish = {"name": self.queue, "filter": self._filter, "positions": _named(positions)}
            self._admin.post("/admin/queues/register", {**wish, "by": self._by, "reason": reason})
        else:
            held = [
                one.get("reason")
                for one in found.get("suspensions", ())
                if (one.get("what"), one.get("node")) == (SERVING, None)
            ]
            if held:
                return reason not in held
        self._admin.post(f"{self._path}/suspend", {"what": SERVING, "by": self._by, "reason": reason})
        return False

    def place(self, positions: Mapping[int, int], reason: str, *, resume: bool) -> None:
        """Move the queue to `positions`; with `resume` resume serving."""
        wish = {"positions": _named(positions), "by": self._by, "reason": reason}
        self._admin.post(f"{self._path}/place", wish)
        if resume:
            self._admin.post(f"{self._path}/resume", {"what": SERVING, "by": self._by})

    def status(self) -> QueueStatus:
        """The queue's status over all nodes."""
        owner, waiting, oldest, known = "", 0, 0, True
        for node in self._admin.get("/admin/queues/nodes").get("nodes", []):
            if node.get("gone"):
                continue
            rows = node.get("queues")
            one = next((row for row in rows or () if row.get("name") == self.queue), None)
            if one is None or one.get("waiting") is None:
                known = False
                continue
            owner = (one.get("owner") or {}).get("uuid", owner)
            waiting += one["waiting"] + (one.get("in_flight") or 0)
            oldest = max(oldest, one.get("oldest_age_ms") or 0)
        # Changes of partitions without a leader, and of nodes that are gone, are not in the sum.
        lag = self._admin.get("/admin/lag").get("lag", [])
        known = known and not any(row.get("unknown_partitions") for row in lag if row.get("queue") == self.queue)
        return QueueStatus(owner, waiting if known else None, oldest if known else None)


def _named(positions: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): offset for partition, offset in positions.items()}


def _object(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise PeerFault(f"the admin listener's answer is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise PeerFault("the admin listener's answer is not a JSON object")
    return found


CHUNK_ROWS: Final = 20_000
"""Approximate rows per chunk: seconds of a task, and what a killed run repeats per task."""

CHUNKS_MIN: Final = 32
"""Minimum for small clusters, so that progress is recorded there, too."""

CHUNKS_MAX: Final = 65_536

SAMPLED: Final = 8
"""Partitions from which a frame is read to estimate the size of objects."""


PROPERTIES_TIMEOUT_MS: Final = 5_000
PROPERTIES_BYTES_MAX: Final = 1024 * 1024
"""Many times what the properties of a bucket type take."""

NOT_COMPARED: Final = frozenset({"name", "n_val"})
"""Properties that may differ: each cluster has its own number of replicas."""


class SeedOptions(NamedTuple):
    """Options of a seed. `output`: a directory that driver and workers reach; `queue` "": no hand-over; `max_time_s` 0:
    no limit; `rows_per_second` 0: no limit; `into_nonempty`: the target may have objects; tokens need the role
    `replicate` of each cluster (one token for both if `target_token_file` is "")."""

    output: str
    run_id: str
    bucket_type: str = "default"
    queue: str = ""
    filter: str = "any"
    into_nonempty: bool = False
    verify: bool = True
    rows_per_second: int = 0
    max_time_s: float = 0.0
    settle_s: float = 10.0
    give_up_after_s: int = 60
    token_file: str = ""
    target_token_file: str = ""
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""


ABOUT: Final = ("bucket_type", "queue", "filter")
"""Options that identify a seed; others may change between attempts."""


def planned(source: str, target: str, options: SeedOptions, queue: QueueHandOver | None) -> dict[str, Any]:
    """The plan, as it would be done; nothing is changed and nothing written. Raises BadInput for options that mean
    nothing, one cluster twice, a queue of others; PeerFault when a cluster does not answer, RangeUnreadable for a
    partition without a copy."""
    sides = sides_of(source, target, options)
    plans = [plan_of(side) for side in sides]
    if plans[0].cluster == plans[1].cluster:
        raise BadInput(f"source and target are the same cluster, {plans[0].cluster_name}")
    chunks = _chunks(plans[0])
    found = None if queue is None else queue.check(plans[0].cluster, plans[1].cluster)
    objects, held = map(_objects, plans)
    size = _object_bytes(sides[0], plans[0])
    rate = options.rows_per_second
    properties = [_properties(side) for side in sides]
    return {
        "form": 1,
        "source": plans[0].cluster_name,
        "target": plans[1].cluster_name,
        "clusters": [plan.cluster.hex() for plan in plans],
        "bucket_type": options.bucket_type,
        "objects": objects,
        "bytes": None if objects is None or size is None else round(objects * size),
        "target_objects": held,
        "properties_differing": differing_properties(*properties),
        "seconds": round(objects / rate, 1) if objects is not None and rate else None,
        "partitions": len(plans[0].partitions),
        "chunks": [list(chunk) for chunk in chunks],
        "queue": options.queue,
        "queue_is_new": queue is not None and found is None,
        "filter": options.filter if found is None else str(found.get("filter", "any")),
        "begin": {
            str(one.partition): min((copy.offset for copy in one.copies), default=0) for one in plans[0].partitions
        },
    }


def check_clusters(plan: Mapping[str, Any], sides: Sequence[SideSpec]) -> None:
    """Raise BadInput if a cluster is another one than at the begin: a new cluster at an old address lacks what was
    copied. A cluster that does not respond is skipped."""
    for what, uuid, side in zip(("source", "target"), plan["clusters"], sides, strict=True):
        try:
            found = plan_of(side)
        except PeerFault:
            continue
        if found.cluster.hex() != uuid:
            raise BadInput(
                f"the {what} of this seed was {plan[what]}, uuid {uuid}; {side.urls[0]} is {found.cluster_name}, uuid"
                f" {found.cluster.hex()}: take another run id"
            )


def differing_properties(source: Mapping[str, Any] | None, target: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """{property: [at the source, at the target]} of the bucket type's differing properties; None if a side does not
    report them."""
    if source is None or target is None:
        return None
    names = sorted((source.keys() | target.keys()) - NOT_COMPARED)
    return {name: [source.get(name), target.get(name)] for name in names if source.get(name) != target.get(name)}


def _properties(side: SideSpec) -> dict[str, Any] | None:
    """The bucket type's properties; None if no node reports them, or the token does not allow it: a seed does not need
    them."""
    path = f"/types/{quote(side.bucket_type, safe='')}/props"
    for url in side.urls:
        peer = HttpPeer(url, 1, side.credentials.access())
        try:
            found = json.loads(peer.get(path, timeout_ms=PROPERTIES_TIMEOUT_MS, limit_bytes=PROPERTIES_BYTES_MAX))
            return dict(found["props"])
        except (PeerFault, ValueError, TypeError, KeyError, RecursionError):
            continue
        finally:
            peer.abort()
    return None


def sides_of(source: str, target: str, options: SeedOptions) -> list[SideSpec]:
    """Both clusters, as tasks receive them. Raises BadInput."""
    tokens = (options.token_file, options.target_token_file or options.token_file)
    return [
        SideSpec(
            parse_options({"urls": urls}).urls, options.bucket_type, token, options.ca_file, b"", 0.0,
            options.give_up_after_s, options.certificate_file, options.key_file,
        )
        for urls, token in zip((source, target), tokens, strict=True)
    ]  # fmt: skip


def _chunks(plan: ReplicaDirectory) -> list[SeedChunk]:
    """Ranges of about CHUNK_ROWS rows, each within one partition."""
    found: list[SeedChunk] = []
    objects = sum(one.rows_estimate or 0 for one in plan.partitions)
    rows = max(1, min(CHUNK_ROWS, objects // CHUNKS_MIN), objects // CHUNKS_MAX)
    for one in plan.partitions:
        plan_ranges(plan, (one.first, one.end), 1, Consistency.ANY)  # a copy there must be
        span = one.end - one.first
        pieces = max(1, min(span, (one.rows_estimate or 0) // rows + 1)) if span else 0
        cuts = [one.first + span * at // pieces for at in range(pieces + 1)] if pieces else []
        found += [SeedChunk(0, one.partition, *cut) for cut in pairwise(cuts)]
    begins = {one.partition: one.first for one in plan.partitions}
    # Round robin over the partitions, so that all nodes share the load.
    found.sort(key=lambda chunk: (chunk.first - begins[chunk.partition], chunk.partition))
    return [chunk._replace(number=number) for number, chunk in enumerate(found)]


def _objects(plan: ReplicaDirectory) -> int | None:
    """Estimated number of objects, exact for few; None if a partition has no estimate."""
    found = 0
    for one in plan.partitions:
        if one.first < one.end:
            if one.rows_estimate is None:
                return None
            found += one.rows_estimate
    return found


def _object_bytes(side: SideSpec, plan: ReplicaDirectory) -> float | None:
    """Mean size of a sample of objects; None without objects, or if none can be read."""
    total, count = 0, 0
    try:
        for one in [each for each in plan.partitions if each.rows_estimate][:SAMPLED]:
            [part] = plan_ranges(plan, (one.first, one.end), 1, Consistency.ANY)
            asked = RowsRequest(side.bucket_type.encode(), one.partition, one.first, one.end)
            stream = RangeStream(asked, part, side.credentials, give_up_after_s=side.give_up_after_s)
            with closing(stream.frames()) as frames:  # type: ignore[type-var]
                for _, rows in frames:
                    fields = parsed(Blobs.of(rows.key_rows))
                    if fields is not None:
                        total, count = total + int(fields.size.sum()), count + len(rows.names)
                    break
    except IsthmusError:
        return None
    return total / count if count else None
