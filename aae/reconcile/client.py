"""Requests of batch jobs to a cluster, from the driver and from executors: plans, streams of rows, pushes.

Blocking, one request at a time; errors are raised, and the callers (`row_reader`, `row_writer`) try another node.
Tokens and certificates are files, read where the work runs, so options contain no secrets. For the format see
`aae.row_stream.wire`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote

import msgpack

from isthmus.aae.row_stream import wire
from isthmus.aae.row_stream.wire import Frame, Frames, Head, Rows, SkippedTo, Tail
from isthmus.repl.http.client import HttpPeer, HttpRefused, PeerCredentials, as_protected
from isthmus.repl.model.errors import BadConfig, BadInput, CodecError, PeerFault
from isthmus.repl.model.keys import SEGMENT_COUNT
from isthmus.repl.security.tls import TlsFiles, client_contexts
from isthmus.repl.security.tokens import read_token

PLAN_TIMEOUT_MS: Final = 15_000
"""Time-out of a plan, for which the node sends requests to all others."""

STREAM_TIMEOUT_MS: Final = 30_000
"""Time-out of the next frame. With filters a node may read many rows for few, and sends a mark after every 4,096; a
busy node sleeps long between two frames."""

FRAME_TIMEOUT_S: Final = 60.0
"""Time-out of a frame from its first byte to its last: 1 MB over 140 kbit/s. A node that sends byte by byte must not
hold a task forever."""

PUSH_TIMEOUT_MS: Final = 60_000
"""Time-out of a batch, until it is applied."""

PLAN_BYTES_MAX: Final = 64 * 1024 * 1024
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024

PARTITIONS_MAX: Final = 65_536

Response = TypeVar("Response")


class Credentials(NamedTuple):
    """Paths of a token, of the trusted authorities, and of a certificate with its key; "" for none."""

    token_file: str = ""
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""

    def access(self) -> PeerCredentials:
        """The contents of the files. Raises BadInput when one cannot be read."""
        contexts = None
        for name in ("ca_file", "certificate_file", "key_file"):
            path = getattr(self, name)
            if path and not Path(path).is_file():
                raise BadInput(f"option {name}: there is no file {path!r} on this machine; executors need it, too")
        if self.ca_file or self.certificate_file:
            authorities = (Path(self.ca_file),) if self.ca_file else ()
            certificate, key = (Path(path) if path else None for path in (self.certificate_file, self.key_file))
            contexts = client_contexts(TlsFiles(certificate, key, authorities), check_host=True).current
        if not self.token_file:
            return PeerCredentials(contexts)
        try:
            token = read_token(Path(self.token_file))
        except BadConfig as error:
            raise BadInput(f"option token_file: {error}; executors need it, too") from error
        return PeerCredentials(contexts, token=lambda: token)


class ReplicaEndpoint(NamedTuple):
    """A replica of a partition at the node's `url`, applied to `offset` of `epoch` at the time of the plan."""

    node: str
    url: str
    leads: bool
    whole: bool
    epoch: int
    offset: int


class PartitionPlan(NamedTuple):
    """The replicas of the segments [first, end). `lineage`: number of leaders elected by force; such a leader's log may
    end before what others had applied. `incarnation`: of the partition's actor, another one after each return to an
    earlier state; None: the node is of an earlier version."""

    partition: int
    first: int
    end: int
    rows_estimate: int | None
    copies: tuple[ReplicaEndpoint, ...]
    lineage: int = 0
    incarnation: int | None = None


class ReplicaDirectory(NamedTuple):
    """The replicas of a bucket type."""

    cluster: bytes
    cluster_name: str
    bucket_type: str
    partitions: tuple[PartitionPlan, ...]


def first_response(
    urls: Sequence[str],
    credentials: Credentials,
    send: Callable[[HttpPeer], Response],
    *,
    fatal: Callable[[PeerFault | CodecError], bool],
    failed: str,
) -> Response:
    """The result of `send` at the first node for which it does not fail.

    Raises an error that is `fatal`, because it would be the same at every node; PeerFault with `failed` and all errors
    if every node has failed."""
    access = credentials.access()
    failures: list[str] = []
    for url in urls:
        peer = HttpPeer(url, 1, access)
        try:
            return send(peer)
        except (PeerFault, CodecError) as error:
            if fatal(error):
                raise
            failures.append(str(error))
        finally:
            peer.abort()
    raise PeerFault(f"{failed}: {'; '.join(failures)}")


def fetch_plan(urls: Sequence[str], credentials: Credentials, bucket_type: str) -> ReplicaDirectory:
    """The plan of the first node that responds. Raises PeerFault if none does, BadInput for an unknown bucket type."""

    def send(peer: HttpPeer) -> ReplicaDirectory:
        path = f"{wire.PLAN_PATH}?bucket_type={quote(bucket_type, safe='')}"
        try:
            data = peer.get(path, timeout_ms=PLAN_TIMEOUT_MS, limit_bytes=PLAN_BYTES_MAX)
        except HttpRefused as error:
            if error.reason == "unknown-bucket-type":
                raise BadInput(f"option bucket_type: {error}") from error
            raise
        return parse_plan(data, peer.url)

    return first_response(
        urls, credentials, send, fatal=lambda _: False, failed="no node answers which nodes hold which partitions"
    )


class QueuePosition(NamedTuple):
    """A queue of one cluster for another. `cursors`: partition -> the offset below which everything is acknowledged,
    None: not known. `reason`: why it does not serve all, "" for none."""

    queue: str
    cluster: str
    filter: str
    reason: str
    cursors: Mapping[int, int | None]


QUEUES_BYTES_MAX: Final = 16_000_000
"""Longest answer about queues: a thousand queues of a thousand partitions."""


def fetch_queues(urls: Sequence[str], credentials: Credentials, to_cluster: bytes) -> tuple[QueuePosition, ...] | None:
    """The queues of a cluster that cluster `to_cluster` owns; None where its nodes are of a version that does not tell.
    Raises PeerFault, CodecError."""

    def send(peer: HttpPeer) -> tuple[QueuePosition, ...] | None:
        try:
            data = peer.get(wire.QUEUES_PATH, timeout_ms=PLAN_TIMEOUT_MS, limit_bytes=QUEUES_BYTES_MAX)
        except HttpRefused as error:
            if error.status == 404:
                return None
            raise
        try:
            return tuple(
                QueuePosition(
                    str(row["queue"]), str(row["cluster"]), str(row["filter"]), str(row["reason"]),
                    {int(p): None if at is None else int(at) for p, at in row["partitions"].items()},
                )
                for row in json.loads(data)["queues"]
                if row["uuid"] == to_cluster.hex()
            )  # fmt: skip
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise CodecError(f"not queues: {error!r:.200}") from error

    return first_response(
        urls, credentials, send, fatal=lambda _: False, failed="no node answers how far its queues are acknowledged"
    )


def parse_plan(data: bytes, asked_url: str) -> ReplicaDirectory:
    """Decode the plan of the node at `asked_url`; replicas are read with TLS if that URL has it. Raises CodecError."""
    try:
        raw = json.loads(data)
        partitions = tuple(_partition(row, asked_url) for row in raw["partitions"])
        plan = ReplicaDirectory(
            bytes.fromhex(raw["cluster_uuid"]), str(raw["cluster"]), str(raw["bucket_type"]), partitions
        )
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise CodecError(f"not a plan of rows: {error!r:.200}") from error
    if len(plan.cluster) != 16 or not 0 < len(partitions) <= PARTITIONS_MAX:
        raise CodecError("not a plan of rows: uuid or number of partitions is out of range")
    at = 0
    for one in partitions:
        if one.first != at or one.end < one.first:
            raise CodecError(f"not a plan of rows: partition {one.partition} does not begin at segment {at}")
        at = one.end
    if at != SEGMENT_COUNT:
        raise CodecError(f"not a plan of rows: it ends at segment {at}")
    return plan


def _partition(row: Any, asked_url: str) -> PartitionPlan:
    first, end = row["segments"]
    estimate = row["rows_estimate"]
    return PartitionPlan(
        int(row["partition"]), int(first), int(end), None if estimate is None else int(estimate),
        tuple(
            ReplicaEndpoint(
                str(c["node"]),
                as_protected(str(c["http"]), asked_url),
                bool(c["leads"]),
                bool(c["whole"]),
                int(c["epoch"]),
                int(c["offset"]),
            )
            for c in row["copies"]
        ),
        int(row.get("lineage", 0)),
        None if row.get("incarnation") is None else int(row["incarnation"]),
    )  # fmt: skip


@contextmanager
def open_stream(
    url: str, credentials: Credentials, path: str, question: bytes, timeout_ms: int = STREAM_TIMEOUT_MS
) -> Iterator[tuple[Head, Iterator[Rows | SkippedTo | Tail]]]:
    """A stream of rows: its head, then its frames, the tail last. Raises CodecError; PeerFault for a stream that ends
    without a tail, has another number of rows than its tail says, is silent for `timeout_ms`, or needs longer than
    FRAME_TIMEOUT_S for a frame."""
    peer = HttpPeer(url, 1, credentials.access())
    try:
        with peer.streaming(path, question, media_type=wire.MEDIA_TYPE, timeout_ms=timeout_ms) as take:
            frames = _frames(url, take)
            head = next(frames)
            if not isinstance(head, Head):
                raise CodecError(f"{url}: a stream of rows without a head")
            yield head, _checked(url, frames)
    finally:
        peer.abort()


def _frames(url: str, take: Any) -> Iterator[Frame]:
    frames = Frames()
    began_s = monotonic()
    while piece := take():
        for frame in frames.feed(piece):
            yield frame
            began_s = monotonic()  # the time that the reader takes between frames is not the node's
        if monotonic() - began_s > FRAME_TIMEOUT_S:
            raise PeerFault(f"{url}: no frame of rows for {FRAME_TIMEOUT_S:.0f} s, though bytes trickle")
    raise PeerFault(f"{url}: the stream of rows was cut off")


def _checked(url: str, frames: Iterator[Frame]) -> Iterator[Rows | SkippedTo | Tail]:
    count = 0
    for frame in frames:
        if isinstance(frame, Tail):
            if frame.rows != count:
                raise PeerFault(f"{url}: a stream of {frame.rows} rows, {count} came")
            yield frame
            return
        if isinstance(frame, Head):
            raise CodecError(f"{url}: a stream of rows with two heads")
        if isinstance(frame, Rows):
            count += len(frame.names)
        yield frame


class Pusher:
    """Pushes batches to the first node that responds. Not thread-safe."""

    def __init__(self, urls: Sequence[str], credentials: Credentials) -> None:
        access = credentials.access()
        self._peers = [HttpPeer(url, 1, access) for url in urls]
        self._at = 0

    def post(self, path: str, body: bytes, limit_bytes: int = ANSWER_BYTES_MAX) -> list[Any]:
        """The responses to a batch. Raises PeerFault if no node takes it, HttpRefused if it is invalid."""
        failures: list[str] = []
        for turn in range(len(self._peers)):
            at = (self._at + turn) % len(self._peers)
            try:
                data = self._peers[at].post(
                    path, body, media_type=wire.MEDIA_TYPE, timeout_ms=PUSH_TIMEOUT_MS,
                    limit_bytes=limit_bytes,
                )  # fmt: skip
            except HttpRefused as error:
                if error.status < 500:
                    raise
                failures.append(str(error))
            except PeerFault as error:
                failures.append(str(error))
            else:
                self._at = at
                return _answers(data)
        raise PeerFault(f"no node takes the batch: {'; '.join(failures)}")

    def close(self) -> None:
        """Close the connections."""
        for peer in self._peers:
            peer.abort()


def _answers(data: bytes) -> list[Any]:
    try:
        answers = msgpack.unpackb(data)
    except (ValueError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise CodecError(f"not the answers to a batch: {error}") from error
    if not isinstance(answers, list):
        raise CodecError("not the answers to a batch: no list")
    return answers


class TaskRate:
    """Limits a task to its share of a job's rate."""

    def __init__(self, rows_per_second: float) -> None:
        self._rate = rows_per_second
        self._began_s = monotonic()
        self._count = 0

    def wait_for(self, rows: int) -> None:
        """Sleep until this many more rows are due."""
        if self._rate:
            self._count += rows
            ahead_s = self._began_s + self._count / self._rate - monotonic()
            if ahead_s > 0:
                sleep(ahead_s)
