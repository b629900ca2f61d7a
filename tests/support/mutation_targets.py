"""Every decoder of bytes from outside a node: its valid input, and the errors with which it may refuse other input.

A target is a name, samples, and the function that gets a mutant of one; the samples are accepted. Bytes that a checksum
protects are mutated below it (`sealed`), too, since a faulty peer makes checksums as well.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgpack
import msgspec
import structlog.testing
from xxhash import xxh64_digest, xxh64_intdigest

from isthmus.aae.exchange import wire as exchange
from isthmus.aae.exchange.compare import ComparedRow
from isthmus.aae.folds import fold_rpc
from isthmus.aae.folds.folds import FoldCursor, FoldKind, FoldMatch, FoldRequest, FoldScope, Page
from isthmus.aae.reconcile import client as reconcile_client
from isthmus.aae.reconcile import findings
from isthmus.aae.row_stream import plan as row_plan
from isthmus.aae.row_stream import wire as row_stream
from isthmus.aae.scheduling import operator_documents
from isthmus.aae.scrub import row_repair
from isthmus.aae.trees import tree_files
from isthmus.aae.trees.tree import SEGMENT_COUNT, HashTree
from isthmus.client import ClientError
from isthmus.client import operations as client_operations
from isthmus.client import routes as client_routes
from isthmus.config.loader import ConfigError, load_text
from isthmus.config.settings import LimitSettings, ListenSettings
from isthmus.node.client_api.batch_json import JsonForm
from isthmus.node.client_api.batch_msgpack import MsgpackForm
from isthmus.node.http.connection import HttpConnection, SharedState, loaded_config
from isthmus.node.http.fast_connection import connection_factory, read_whole
from isthmus.node.http.responses import RequestRefused
from isthmus.queues import wire as fetch
from isthmus.queues.counters_wire import HeldCountersMessage, decode_counters, encode_counters
from isthmus.queues.cursors import CursorState, decode_soft, decode_state, encode_soft, encode_state
from isthmus.queues.filters import parse_filter
from isthmus.queues.gaps import QueueGap
from isthmus.queues.leases import Session
from isthmus.queues.queue_documents import (
    DEFINITIONS,
    QueuePaths,
)
from isthmus.queues.sink_shares import TypeShare
from isthmus.repl.controller import bucket_properties, dynamic_options, placement, reassignment_orders
from isthmus.repl.coordinator import kv_rpc
from isthmus.repl.http.routes import HASH, parse_routes
from isthmus.repl.isr.messages import (
    AppendAck,
    FollowRejected,
    FollowRejection,
    FollowRequest,
    TransferMetadata,
    TransferRequest,
    TransferRows,
)
from isthmus.repl.isr.pair_stream import StreamAck, StreamGroup, StreamRun
from isthmus.repl.metastore import codecs
from isthmus.repl.metastore.counters import CHAIN_COUNTER
from isthmus.repl.metastore.joined_document import JoinedDocument
from isthmus.repl.metastore.port import Versioned
from isthmus.repl.metastore.watched_document import Document
from isthmus.repl.model.conditions import Condition
from isthmus.repl.model.entry import decode_entry, decode_key_row, encode_key_row
from isthmus.repl.model.errors import CodecError, IsthmusError, NotLeader
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import (
    Content,
    decode_object,
    encode_object,
    peek_summary,
    summarize_encoded,
    write,
)
from isthmus.repl.model.record import Incarnation, Member, PartitionRecord, PartitionStatus, Registration
from isthmus.repl.model.requests import PushItem, PushOutcome, PushResult, WriteRequest, WriteResult
from isthmus.repl.model.vclock import actor_of, decode_clock, encode_clock, pack_counter
from isthmus.repl.replog import frames as log_frames
from isthmus.repl.replog.frames import EntryRunKind, encode_entries, encode_truncate
from isthmus.repl.replog.frames import encode_state as encode_log_state
from isthmus.repl.runtime import handover
from isthmus.repl.store import reaped_keys, row_codec, rows
from isthmus.repl.transport import handshake
from isthmus.repl.transport.codec import Encoder, decode_item
from isthmus.repl.transport.frames import FrameKind, FrameReader, Lane, frame_head, unpacked
from isthmus.sink import discovery, limits, peers, suspensions
from isthmus.sink.operator_settings import SETTINGS
from tests.support.link_nodes import entries_of, forward
from tests.support.memory_client_api import make_client_api
from tests.support.mutations import Encoding

REFUSALS: Final = (IsthmusError,)
"""The product's errors. Any other exception is a bug, AssertionError included."""

UUID: Final = bytes(range(16))
NOW_MS: Final = 1_700_000_000_000


@dataclass(frozen=True)
class MutationTarget:
    """A decoder: `decode` returns the decoded value, or raises one of `errors`."""

    name: str
    samples: tuple[bytes, ...]
    decode: Callable[[bytes], object]
    encoding: Encoding = Encoding.OPAQUE
    errors: tuple[type[Exception], ...] = REFUSALS


# -- samples -----------------------------------------------------------------------------------------------

ACTOR: Final = actor_of(UUID, 3)
OTHER_ACTOR: Final = actor_of(b"\x02" * 16, 1)
CLOCK: Final = ((ACTOR, pack_counter(1, 5), 1_700_000_000), (OTHER_ACTOR, pack_counter(2, 9), 7))
CONTENT: Final = Content(
    b"value", b"text/plain", b"gzip", ((b"x-riak-meta-a", b"b"),), ((b"b", b"k", b"tag"),), ((b"n_int", b"1"),)
)
PLAIN: Final = write(None, (), Content(b"value"), (ACTOR, pack_counter(1, 5)), NOW_MS)
OBJECT: Final = write(None, CLOCK, CONTENT, (ACTOR, pack_counter(3, 20)), NOW_MS)
SIBLINGS: Final = write(OBJECT, (), Content(b"other"), (OTHER_ACTOR, pack_counter(3, 21)), NOW_MS)
OBJECTS: Final = tuple(encode_object(each) for each in (PLAIN, OBJECT, SIBLINGS))
KEY: Final = Key(b"default", b"bucket", b"key")
CHANGE_ROW: Final = rows.CHANGE_HEAD.pack(1, 77, NOW_MS) + UUID + rows.bucket_head(b"bucket") + b"key"


def packed(*values: object) -> tuple[bytes, ...]:
    """Values in msgpack."""
    return tuple(bytes(msgpack.packb(value)) for value in values)


def _versioned(document: Document[Any]) -> Callable[[bytes], object]:
    return lambda data: document.decode(Versioned(data, 1))


# -- between the nodes of a cluster ------------------------------------------------------------------------


def _wire_frame(kind: FrameKind, body: bytes, lane: Lane = Lane.LIVE, *, more: bool = False) -> bytes:
    return frame_head(kind, lane, (body,), more=more) + body


def _frames(data: bytes) -> object:
    """Decode a connection's input: frames, their bodies, and the messages in them."""
    found: list[object] = []
    for frame in FrameReader(1 << 20, 1 << 20).frames(data):
        found += map(decode_item, unpacked(frame.body))
    return found


def _messages(body: bytes) -> object:
    return [decode_item(item) for item in unpacked(body)]


def _node_targets() -> Iterator[MutationTarget]:
    encoder = Encoder()
    wires = (b"one", b"", b"two")
    run = b"".join(encode_entries(EntryRunKind.ENTRIES, 3, 2, 2, 5, wires, list(map(len, wires))))
    table = ((1, 0), (3, 40))
    messages = [
        forward(7, entries_of(3, 20)),
        forward(8),
        StreamGroup(5, 6, 7, (1, 2), (StreamRun(3, 2, 5, 3, run, list(wires)),)),
        StreamAck(5, 6, 7, (3,)),
        FollowRequest(3, 7, 8, 40, 50, table, 2),
        FollowRejected(3, 7, next(iter(FollowRejection)), 4),
        TransferRequest(3, 7, 8, 40, 2, 1, 9, b"after"),
        TransferRows(3, 7, 8, 40, 2, 9, b"rows"),
        TransferMetadata(3, 7, 8, b"after", b"last", 1, table, b"rows"),
        AppendAck(1, 7, 8, 0, 0, 0),
    ]
    items = [b"".join(map(bytes, encoder.item(3, message, {b"to-west": b"cursor"}))) for message in messages]
    bodies = tuple(b"\x91" + item for item in items)
    half = len(bodies[0]) // 2
    pieces = _wire_frame(FrameKind.MESSAGES, bodies[0][:half], more=True) + _wire_frame(
        FrameKind.MESSAGES, bodies[0][half:]
    )
    streams = (*(_wire_frame(FrameKind.MESSAGES, body) for body in bodies), pieces)
    yield MutationTarget("peer frames", streams, _frames)
    yield MutationTarget("peer messages", bodies, _messages, Encoding.MSGPACK)
    greeting = handshake.encode_handshake(handshake.Handshake(UUID, "east", "east-1", "east-2", 1 << 20))
    yield MutationTarget("peer handshake", (greeting,), handshake.decode_handshake, Encoding.MSGPACK)
    refused = handshake.ConnectionRefused(handshake.HandshakeRefusal.VERSION, "another version")
    refusal = handshake.encode_refusal(refused)
    yield MutationTarget("peer refusal", (refusal,), handshake.decode_refusal, Encoding.MSGPACK)

    writes = [WriteRequest(KEY, CONTENT, CLOCK, b"request", payload_wanted=False)]
    writes.append(writes[0]._replace(condition=Condition(("tag",), None, 5, None, CLOCK)))
    pushes = [PushItem(KEY, UUID, OBJECTS[0]), PushItem(KEY, UUID, OBJECTS[2], leaving=True)]
    yield MutationTarget(
        "forwarded writes",
        tuple(kv_rpc.encode_body(None, [kv_rpc.encode_write(each)]) for each in writes),
        kv_rpc.decode_writes,
        Encoding.MSGPACK,
    )
    yield MutationTarget(
        "forwarded pushes",
        tuple(kv_rpc.encode_body(None, [kv_rpc.encode_push(each)]) for each in pushes),
        kv_rpc.decode_pushes,
        Encoding.MSGPACK,
    )
    reads = kv_rpc.encode_body("committed", [kv_rpc.encode_key(KEY)])
    yield MutationTarget(
        "forwarded reads", (reads,), lambda data: kv_rpc.decode_body(data, kv_rpc.decode_key), Encoding.MSGPACK
    )
    written = WriteResult(OBJECTS[0], encode_clock(CLOCK), 1)
    write_answers = (
        kv_rpc.encode_write_answers([written]),
        kv_rpc.encode_write_answers([NotLeader("not here", "n2")]),
        kv_rpc.encode_write_answers([kv_rpc.LATER]),
    )
    yield MutationTarget(
        "answers to writes", write_answers, lambda data: kv_rpc.decode_write_answers(data, 1, "n2"), Encoding.MSGPACK
    )
    push_answers = (kv_rpc.encode_push_answers([PushResult(PushOutcome.APPLIED), PushResult(PushOutcome.MERGED)]),)
    yield MutationTarget(
        "answers to pushes", push_answers, lambda data: kv_rpc.decode_push_answers(data, 2), Encoding.MSGPACK
    )
    yield MutationTarget(
        "answers to reads",
        (kv_rpc.encode_answers([OBJECTS[0]], kv_rpc.read_row),),
        lambda data: kv_rpc.decode_read_answers(data, 1),
        Encoding.MSGPACK,
    )
    asks = [kv_rpc.ListAsk(3, b"bucket", (b"bucket", b"key")), kv_rpc.ListAsk(3, None, None, b"a", 10, 1_000)]
    yield MutationTarget(
        "listing requests", tuple(map(kv_rpc.encode_list_ask, asks)), kv_rpc.decode_list_ask, Encoding.MSGPACK
    )
    page = kv_rpc.encode_list_page(kv_rpc.ListPage([b"a", b"b"], (b"bucket", b"b")))
    yield MutationTarget("listing pages", (page,), kv_rpc.decode_list_page, Encoding.MSGPACK)
    order = handover.encode(3, 4, "n2", 500)
    yield MutationTarget("hand-over requests", (order,), lambda data: handover._decoded("n2", data), Encoding.MSGPACK)

    scope = FoldScope(b"bucket", b"a", b"z", None, 5, 9, 2, 3)
    fold = fold_rpc.encode_request(3, FoldRequest(FoldKind.FIND_KEYS, scope, FoldCursor(4, b"name"), "q", dry=True))
    yield MutationTarget("fold requests", (fold,), fold_rpc.decode_request, Encoding.MSGPACK)
    match = FoldMatch(b"bucket", b"key", 2, 3, 4, "note")
    fold_page = fold_rpc.encode_page(Page(FoldCursor(4, b"name"), 5, 6, [match], 7))
    yield MutationTarget("fold pages", (fold_page,), fold_rpc.decode_page, Encoding.MSGPACK)
    replicas = [row_plan.ReplicaStatus(3, True, True, 4, 5, None)]
    statuses = msgspec.msgpack.encode((row_plan.VERSION, replicas))
    yield MutationTarget("replicas of a plan", (statuses,), row_plan._decode, Encoding.MSGPACK)
    transfer = (5, CHANGE_ROW, b"key row", OBJECTS[0])
    yield MutationTarget(
        "transferred rows (sealed)",
        (row_codec.encode([transfer])[row_codec.CHECKSUM_BYTES :],),
        lambda body: [row.place() for row in row_codec.decode_rows(xxh64_digest(body) + body)],
        Encoding.MSGPACK,
    )
    state = row_codec.encode([(bytes((tag,)) + b"name", b"value") for tag in b"".join(row_codec.STATE_TAGS)])
    yield MutationTarget(
        "transferred state (sealed)",
        (state[row_codec.CHECKSUM_BYTES :],),
        lambda body: row_codec.decode_state(xxh64_digest(body) + body),
        Encoding.MSGPACK,
    )


# -- the log, the store ------------------------------------------------------------------------------------


def _log_body(data: bytes) -> object:
    """A frame's body as recovery and readers decode it, under the number of runs that its first byte has."""
    body = data[1:]
    found: list[object] = []
    for run in log_frames.decode_runs(body, data[0] if data else 0):
        if run.kind in (EntryRunKind.ENTRIES, EntryRunKind.COPIED):
            found += log_frames.decode_wires(body, run, run.base, run.base + run.item_count)
        elif run.kind in (EntryRunKind.STATE, EntryRunKind.START):
            found.append(log_frames.decode_state(body, run))
    return found


def _stored_targets() -> Iterator[MutationTarget]:
    entries = [entry.wire for entry in entries_of(3, 20)]
    run = b"".join(encode_entries(EntryRunKind.ENTRIES, 3, 2, 2, 5, entries, list(map(len, entries))))
    more = encode_truncate(3, 2, 1, 6) + encode_log_state(3, 1, 9, ((1, 0), (2, 4)))
    yield MutationTarget("log runs", (b"\x01" + run, b"\x03" + run + more), _log_body)
    yield MutationTarget(
        "new log runs", (b"\x01" + run, b"\x02" + run * 2),
        lambda data: log_frames.decode_new_entries(data[1:], data[0] if data else 0),
    )  # fmt: skip
    header = log_frames.encode_file_header(log_frames.FileHeader(UUID, 3, 4))
    yield MutationTarget("log file headers", (header,), log_frames.decode_file_header)
    yield MutationTarget(
        "log file headers (sealed)",
        (header[:-8],),
        lambda data: log_frames.decode_file_header(data + xxh64_intdigest(data).to_bytes(8, "little")),
    )
    head = log_frames.encode_frame_header(run, 1, durable=log_frames.LogPosition(3, 4), complete=True, seed=5)
    yield MutationTarget(
        "log frame headers (sealed)",
        (head[:-8],),
        lambda data: log_frames.decode_frame_header(data + xxh64_intdigest(data, 5).to_bytes(8, "little"), 5),
    )
    yield MutationTarget("log entries", tuple(entries), decode_entry, Encoding.MSGPACK)
    yield MutationTarget("clocks", (encode_clock(CLOCK), encode_clock(())), decode_clock, Encoding.MSGPACK)
    yield MutationTarget("objects", OBJECTS, decode_object, Encoding.MSGPACK)
    yield MutationTarget("glances at objects", OBJECTS, peek_summary, Encoding.MSGPACK)
    yield MutationTarget("summaries", OBJECTS, summarize_encoded, Encoding.MSGPACK)
    key_rows = tuple(encode_key_row(summarize_encoded(each), 900) for each in OBJECTS)
    yield MutationTarget("key rows", key_rows, decode_key_row, Encoding.MSGPACK)
    yield MutationTarget("change rows", (CHANGE_ROW,), lambda data: rows.decode_change(5, data))
    yield MutationTarget("places of change rows", (CHANGE_ROW,), lambda data: rows.change_place(5, data))
    yield MutationTarget("reaped keys", (reaped_keys.encode_gone(b"b", b"k", b"clock"),), reaped_keys.decode_gone)
    yield MutationTarget("applied rows", (rows.encode_position(rows.StoredPosition(*_POSITION)),), rows.decode_position)
    yield MutationTarget("transfer marks", (rows.encode_mark(rows.MarkKind.WHOLE, 3, 4),), rows.decode_mark)
    tree = HashTree()
    tree.change(5, 77)
    saved = packed([3, 4, 5, tree.dump()], [3, 4, 5, {}])
    yield MutationTarget("trees (sealed)", saved, _tree, Encoding.MSGPACK)
    gap = QueueGap(5, 9, 1, 2, 3, "discard", "ann", "why")
    states = [CursorState(5, 1, UUID), CursorState(9, 2, UUID, 3, (gap,))]
    yield MutationTarget("queue cursors", tuple(map(encode_state, states)), decode_state, Encoding.MSGPACK)
    yield MutationTarget("soft cursors", (encode_soft(1, 2, 0), encode_soft(1, 2, 3)), decode_soft, Encoding.MSGPACK)


_POSITION: Final = tuple(range(len(rows.StoredPosition._fields)))


def _tree(body: bytes) -> object:
    data = tree_files._MAGIC + body
    return tree_files._decoded(data + xxh64_digest(data), (0, SEGMENT_COUNT))


# -- between clusters --------------------------------------------------------------------------------------


def _row_frames(data: bytes) -> object:
    return [list(each) if isinstance(each, tuple) else each for each in row_stream.Frames().feed(data)]


def _cluster_targets() -> Iterator[MutationTarget]:
    session = Session(b"c" * 16, "w1", b"i" * 8, 3)
    ack = fetch.BatchAck(b"batch", 1, (0, 2), (1, 2, 3, 4), (5,))
    requests = [
        fetch.FetchRequest(session, "q", (), None, 10, 1_000, 0, "", {}, None, None, None),
        fetch.FetchRequest(
            session, "q", (ack,), (b"held",), 10, 1_000, 50, fetch.ZSTD, {b"default": b"d" * 8},
            frozenset((b"default",)), {b"default": {b"b": b"d" * 10}}, {b"default": TypeShare(12, 5)},
        ),
    ]  # fmt: skip
    yield MutationTarget(
        "fetch requests", tuple(map(fetch.encode_request, requests)), fetch.decode_request, Encoding.MSGPACK
    )
    items = tuple((n, 2, 3, *KEY, UUID, NOW_MS, payload) for n, payload in enumerate(OBJECTS))
    reply = fetch.FetchReply(UUID, "east", 1, b"batch", 30_000, NOW_MS, fetch.SERVING, items)
    full = reply._replace(
        properties={b"default": b"d" * 8}, waited_ms=5, held={b"logs": 7}, scopes={b"b": {b"": b"d" * 10}}
    )
    yield MutationTarget(
        "fetch answers", tuple(map(fetch.encode_reply, (reply, full))), fetch.decode_reply, Encoding.MSGPACK
    )
    large = reply._replace(items=items * 20)
    zipped = fetch.encode_reply(large, fetch.ZSTD)
    yield MutationTarget("compressed fetch answers", (zipped,), fetch.decode_reply, Encoding.MSGPACK)
    told = HeldCountersMessage(UUID, "west", {UUID + bytes(4): 1 << 44, UUID + bytes(11) + b"\1": 1 << 63})
    filtered = told._replace(filter="any, !buckettype:b")
    yield MutationTarget(
        "told counters", tuple(map(encode_counters, (told, filtered))), decode_counters, Encoding.MSGPACK
    )
    asking = fetch.encode_asking(fetch.ObjectRequest(UUID, "west", KEY))
    yield MutationTarget("object requests", (asking,), fetch.decode_asking, Encoding.MSGPACK)
    answers = [fetch.ObjectReply(UUID, "east", payload) for payload in (None, OBJECTS[0])]
    yield MutationTarget(
        "object answers", tuple(map(fetch.encode_object_reply, answers)), fetch.decode_object_reply, Encoding.MSGPACK
    )

    readiness = (exchange.TreeReadiness(3, True, ""), exchange.TreeReadiness(4, False, "rebuilt"))
    clocks = exchange.ClocksRequest(b"default", (3, 9), 16, 0, 0, 100)
    compared = ComparedRow(b"bucket", b"key", encode_clock(CLOCK), 77, NOW_MS, False)
    yield MutationTarget(
        "tree questions: roots", (exchange.encode_roots_request(exchange.RootsRequest(b"default")),),
        exchange.decode_roots_request, Encoding.MSGPACK,
    )  # fmt: skip
    yield MutationTarget(
        "tree questions: leaves", (exchange.encode_leaves_request(exchange.LeavesRequest(b"default", (1, 5), 16)),),
        exchange.decode_leaves_request, Encoding.MSGPACK,
    )  # fmt: skip
    yield MutationTarget(
        "tree questions: clocks", (exchange.encode_clocks_request(clocks),),
        exchange.decode_clocks_request, Encoding.MSGPACK,
    )  # fmt: skip
    applied = exchange.AppliedTree(3, exchange.PartitionHistory(1, 1 << 60), 7, 1 << 40)
    yield MutationTarget(
        "tree answers: applied offsets", (exchange.encode_applied([applied, applied._replace(partition=4)]),),
        exchange.decode_applied, Encoding.MSGPACK,
    )  # fmt: skip
    hashes = exchange.encode_hashes(exchange.HashesResponse(readiness, HashTree(0, 1024).branch_hashes()[:4]))
    yield MutationTarget(
        "tree answers: hashes", (hashes,), lambda data: exchange.decode_hashes(data, 4), Encoding.MSGPACK
    )
    rows_answer = exchange.encode_rows(exchange.RowsResponse(readiness, 2, [compared, compared._replace(key=b"k2")]))
    yield MutationTarget(
        "tree answers: rows", (rows_answer,), lambda data: exchange.decode_rows(data, clocks), Encoding.MSGPACK
    )
    wrapped = exchange.PeerResponse(UUID, "east", rows_answer * 20)
    yield MutationTarget(
        "tree answers of a peer",
        (exchange.encode_peer_response(wrapped), exchange.encode_peer_response(wrapped, exchange.ZSTD)),
        exchange.decode_peer_response,
        Encoding.MSGPACK,
    )
    repair = exchange.encode_repair_request(exchange.RepairRequest("to-west", b"default", ((b"b", b"k"), (b"b", b"l"))))
    yield MutationTarget("repair requests", (repair,), exchange.decode_repair_request, Encoding.MSGPACK)
    repaired = exchange.encode_repair_response(7)
    yield MutationTarget("repair answers", (repaired,), exchange.decode_repair_response, Encoding.MSGPACK)

    asked = row_stream.RowsRequest(b"default", 3, 0, 1_000, bucket=b"b", prefix=b"p", since_ms=5, before_ms=9)
    yield MutationTarget(
        "row requests", (row_stream.encode_rows_request(asked),), row_stream.decode_rows_request, Encoding.MSGPACK
    )
    changes = row_stream.encode_changes_request(row_stream.ChangesRequest(b"default", 3, 0, 1_000))
    yield MutationTarget("change requests", (changes,), row_stream.decode_changes_request, Encoding.MSGPACK)
    stream = (
        row_stream.encode_head(row_stream.Head(UUID, "east", "n1", 3, 0, 1_000, 4, 5)),
        row_stream.encode_frame(row_stream.Rows([b"name 1", b"name 2"], [b"row", b"row"], OBJECTS[:2])),
        row_stream.encode_skipped_to(row_stream.SkippedTo(b"name 3")),
        row_stream.encode_tail(row_stream.Tail(2)),
    )
    yield MutationTarget("row streams", (b"".join(stream),), _row_frames)
    yield MutationTarget(
        "row frames",
        tuple(each[row_stream.LENGTH.size :] for each in stream),
        row_stream.decode_frame,
        Encoding.MSGPACK,
    )
    candidates = bytes(msgpack.packb([5, [[b"b", b"k", None, [1, 2, b"c", 3, 4, 5][: len(_OBSERVED)]]], []]))
    yield MutationTarget("reconcile candidates", (candidates,), findings.decode_candidates, Encoding.MSGPACK)

    nodes = {"v": 1, "cluster_uuid": UUID.hex(), "cluster": "east", "nodes": [{"http": "http://e1:8098"}], "tls": "off"}
    yield MutationTarget("nodes of a peer", _json(nodes), discovery.parse, Encoding.JSON)
    routes = {
        "v": 1, "hash": HASH, "version": 3, "cluster_uuid": UUID.hex(), "nodes": {"n1": "n1:8098"},
        "bucket_types": {"default": ["n1", None]},
    }  # fmt: skip
    yield MutationTarget("routes of a cluster", _json(routes), parse_routes, Encoding.JSON)
    fault = (ClientError,)
    yield MutationTarget("routes for a client", _json(routes), client_routes.parse_routes, Encoding.JSON, fault)
    page = _json({"keys": ["a", "b%20"], "continuation": "next"}, {"keys": []})
    yield MutationTarget(
        "pages for a client", page, lambda data: client_operations._page(data, "keys", b""), Encoding.JSON, fault
    )
    copies = [{"node": "n1", "http": "http://n1:8098", "leads": True, "whole": True, "epoch": 1, "offset": 5}]
    plan = {
        "cluster_uuid": UUID.hex(), "cluster": "east", "bucket_type": "default",
        "partitions": [{"partition": 0, "segments": [0, SEGMENT_COUNT], "rows_estimate": None, "copies": copies}],
    }  # fmt: skip
    yield MutationTarget(
        "plans of a repair",
        _json(plan),
        lambda data: row_repair._whole_replicas(data, 5, "http://n1:8098"),
        Encoding.JSON,
    )
    yield MutationTarget(
        "plans of rows", _json(plan), lambda data: reconcile_client.parse_plan(data, "http://n1:8098"), Encoding.JSON
    )


_OBSERVED: Final = findings.ObservedKey._fields


def _json(*values: object) -> tuple[bytes, ...]:
    return tuple(json.dumps(value).encode() for value in values)


# -- the metastore, and files ------------------------------------------------------------------------------

_ACT: Final = {"by": "ann", "at_ms": 5, "reason": "why"}
_QUEUE: Final = QueuePaths("q")

_DOCUMENTS: Final[Mapping[str, tuple[Document[Any], tuple[object, ...]]]] = {
    "queue owner": (_QUEUE.owner, ({"owner": UUID.hex(), "cluster": "west", "version": 3, "since_ms": 5, "by": "w1"},)),
    "queue command": (
        _QUEUE.command,
        ({
            "version": 7, "what": "cleared", "start_ms": 5, **_ACT, "positions": [[1, 5]], "by_time": True,
            "change": {
                "filter": "buckettype:logs", "cascade": None, "was": "any", "was_cascade": False, "version": 5,
                "since": 2, **_ACT, "again": True,
            },
            "released": None,
        },),
    ),
    "queue limits": (_QUEUE.limits, ({"queue_limit_count": 5, "overflow": "discard", "riak_fetch": True, **_ACT},)),
    "queue rates": (_QUEUE.rates, ({"bytes": 5, "objects": 6, **_ACT},)),
    "queue suspensions": (_QUEUE.suspensions, ({"suspensions": [{"what": "serving", "node": None, **_ACT}]}, _ACT)),
    "queue marks": (_QUEUE.held, ({"held": [{"node": "e1", "priority": 2, "at_most": 256, "since_ms": 5}]},)),
    "queue losses": (
        _QUEUE.lost,
        ({"lost": [{
            "node": "e1", "priority": 2, "left_out": 3, "from_ms": 5, "upto_ms": 6, "what": "crashed", "by": "",
            "at_ms": 7, "at_most": 256,
        }]},),
    ),
    "queue definitions": (
        DEFINITIONS,
        ({"a": {"filter": "bucketname:x", "cascade": True, "lease_ms": 9, **_ACT}, "b": {"delisted": True, **_ACT}},),
    ),
    "sink suspensions": (suspensions.DOCUMENT, ([{"queue": None, "peer": None, "node": "w1", **_ACT}],)),
    "sink limits": (limits.DOCUMENT, ({"*": {"workers": 5, "bytes_per_second": 7, **_ACT}},)),
    "sink peers": (
        peers.DOCUMENT,
        ({
            "peers": [{"queue": "q", "url": "http://e1:8098", "cluster": "east", **_ACT}],
            "workers": [{"queue": "q", "node": None, "workers": 4, **_ACT}],
        },),
    ),
    "full-sync peers": (
        operator_documents.PEERS,
        ({"peers": {"west": {"e1": {"values": {"auto": 5}, "added": True, "added_ms": 5, **_ACT}}}},),
    ),
    "full-sync suspensions": (operator_documents.SUSPENSIONS, ([{"peer": None, "node": "e1", **_ACT}],)),
    "bucket properties": (
        bucket_properties.PROPERTIES_DOCUMENT,
        ({
            "v": 1, "places": [["default", None, {"allow_mult": [True, "ann", 5]}]],
            "reasons": [["default", None, {"allow_mult": "why"}]],
        },),
    ),
    "options": (
        dynamic_options.OPTIONS_DOCUMENT,
        ({"v": 1, "cluster": {"a": {"value": 1, **_ACT}}, "types": {"logs": {"x": {"value": "s", **_ACT}}}},),
    ),
    "placement": (
        reassignment_orders.ORDERS_DOCUMENT,
        ({
            "v": 1, "next": 3, "nodes": ["n1", "n2"],
            "orders": [{
                "number": 1, "kind": "spread", "title": "t", "by": "ann", "at_ms": 5, "cancelled_by": "",
                "moves": [[3, [0], [1]]],
            }],
            "ended": [[1, "drain", "t", "ann", 5, 6, "done", 1, 1]], "drained": {"n2": ["ann", 5]},
        },),
    ),
    "counter": (CHAIN_COUNTER, ({"v": 1, "next": 5},)),
}  # fmt: skip

_CONFIG: Final = Path(__file__).parents[2] / "config" / "samples" / "node.toml"
"""The file that users begin with."""


def _config(data: bytes) -> object:
    """The settings, or a list of faults as sentences, also of a file that is not UTF-8 (as `load_file` reads it)."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise CodecError("not UTF-8") from error
    try:
        return load_text(text, Path("/nowhere/node.toml"))
    except ConfigError as error:
        if all(each.strip() for each in error.sentences()):
            raise
        raise AssertionError(f"a fault without a sentence: {error.faults}") from error


_JOINED: Final[Mapping[str, tuple[JoinedDocument, Mapping[str, str]]]] = {
    "sink": (SETTINGS, {"suspensions": "sink suspensions", "limits": "sink limits", "peers": "sink peers"}),
    "full-sync": (
        operator_documents.SETTINGS,
        {"suspensions": "full-sync suspensions", "peers": "full-sync peers"},
    ),
}
"""Joined documents: by field, which of `_DOCUMENTS` it is."""


def _joined(document: JoinedDocument, data: bytes) -> object:
    """The values, each decoded or with its error; they are what is read of the bytes that are written for them."""
    values = document.decode(data)
    again = document.decode(document.encode(values))
    for one in document.documents:
        assert bool(again.error(one)) == bool(values.error(one))
        assert values.error(one) or again[one] == values[one]
    return values


def _document_targets() -> Iterator[MutationTarget]:
    for name, (document, values) in _DOCUMENTS.items():
        yield MutationTarget(f"metastore: {name}", _json(*values), _versioned(document), Encoding.JSON)
    for name, (joined, fields) in _JOINED.items():
        sample = {"v": 1, **{field: _DOCUMENTS[what][1][0] for field, what in fields.items()}}
        yield MutationTarget(f"metastore: joined, {name}", _json(sample), partial(_joined, joined), Encoding.JSON)
    record = PartitionRecord(
        3, "notes", 3, 12, ("n1", "n2", "n3"), isr=frozenset({Member("n2", 1)}), leader=Incarnation("n1", 1 << 50),
        status=PartitionStatus.ONLINE, epoch=7, adding=("n3",), removing=("n2",), before=("n1",),
    )  # fmt: skip
    records = (codecs.encode_record(record), codecs.encode_record(replace(record, adding=(), removing=(), before=())))
    yield MutationTarget("metastore: records", records, lambda data: codecs.decode_record(data, 1), Encoding.JSON)
    registration = Registration("n1", 5, True, "http://h:1", "http://h:2", {4: 1, 2: 7}, 50, "h:9", 3, "r1")
    yield MutationTarget(
        "metastore: registrations",
        (codecs.encode_registration(registration),),
        lambda data: codecs.decode_registration(data, "n1", 5),
        Encoding.JSON,
    )
    identity = codecs.encode_log_identity(registration)
    yield MutationTarget("metastore: log identities", (identity,), codecs.decode_log_identity, Encoding.JSON)
    replica_map = _json({"partitions": [{"id": 0, "replicas": [1, 2]}, {"id": 1, "replicas": [2, 1]}]})
    yield MutationTarget("placement files", replica_map, placement.parse_replica_map, Encoding.JSON)
    yield MutationTarget("config files", (_CONFIG.read_bytes(),), _config, Encoding.TEXT, (ConfigError, CodecError))
    filters = (b"any", b"buckettype:a, bucketname:b", b"not(bucketname:x)", b"bucketprefix:y")
    yield MutationTarget("queue filters", filters[:2], _filter, Encoding.TEXT)


def _filter(data: bytes) -> object:
    return parse_filter(data.decode(errors="surrogateescape"))


# -- HTTP --------------------------------------------------------------------------------------------------


def _request(line: bytes, *headers: bytes, body: bytes | None = None) -> bytes:
    length = () if body is None else (b"Content-Length: %d" % len(body),)
    return b"\r\n".join([line + b" HTTP/1.1", b"Host: x", *headers, *length, b"", b""]) + (body or b"")


_TEXT: Final = b"Content-Type: text/plain"
_JSON_TYPE: Final = b"Content-Type: application/json"
_MSGPACK_TYPE: Final = b"Content-Type: application/msgpack"
_PUT_ITEMS: Final = b'[{"bucket": "b", "key": "k", "json": {"a": 1}, "metadata": [["x-riak-meta-a", "b"]]}]'
_CHUNKED: Final = b"\r\n".join(
    [
        b"PUT /buckets/b/keys/c HTTP/1.1",
        b"Host: x",
        _TEXT,
        b"Transfer-Encoding: chunked",
        b"",
        b"5",
        b"value",
        b"0",
        b"",
        b"",
    ]
)

REQUESTS: Final = (
    _request(b"PUT /buckets/b/keys/k", _TEXT, b"X-Riak-Vclock: a85hYGBgzGDKBVIcBwHE=", body=b"value"),
    _request(b"PUT /types/default/buckets/b/keys/k?returnbody=true&timeout=500", _TEXT, b"X-Riak-Meta-a: b", body=b"v"),
    _request(b"POST /buckets/b/keys", _TEXT, b'Link: </buckets/b/keys/1>; riaktag="t"', body=b"value"),
    _request(b"GET /buckets/b/keys/k?vtag=abc", b"Accept: multipart/mixed, */*;q=0.5", b'If-None-Match: "tag"'),
    _request(b"GET /buckets/b/keys/k", b"Accept: application/json"),
    _request(b"DELETE /buckets/b/keys/k", b"If-Match: *"),
    _request(b"HEAD /riak/b/k", b"If-Modified-Since: Thu, 01 Jan 2026 00:00:00 GMT"),
    _request(b"GET /buckets/b/keys?keys=stream&prefix=a&limit=5"),
    _request(b"GET /buckets?buckets=true"),
    _request(b"GET /buckets/b/props"),
    _request(b"POST /batch/put", _JSON_TYPE, body=_PUT_ITEMS),
    _request(b"POST /batch/get", _JSON_TYPE, body=b'[{"bucket": "b", "key": "k"}]'),
    _request(b"POST /batch/put", _MSGPACK_TYPE, body=packed([[b"default", b"b", b"k", b"v", b"a/b", None, None]])[0]),
    _request(b"POST /batch/get", _MSGPACK_TYPE, body=packed([[b"default", b"b", b"k"]])[0]),
    _request(b"GET /cluster/routes", b"Range: bytes=0-5"),
    _request(b"GET /ping") * 3,
    _CHUNKED,
)  # fmt: skip
"""Requests as clients send them; several of them in one piece, too."""


class _Sent(asyncio.Transport):
    """A transport that keeps the written bytes."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 5), "sockname": ("127.0.0.1", 8098)})
        self.data = bytearray()
        self._closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.data += data

    def writelines(self, list_of_data: Any) -> None:
        for data in list_of_data:
            self.write(data)

    def close(self) -> None:
        self._closing = True

    abort = close

    def is_closing(self) -> bool:
        return self._closing

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


TURNS_MAX: Final = 2_000
"""Turns of the loop that an answer may take; the largest one of these takes a few dozen."""


class HttpDriver:
    """The client API over a cluster in memory, on connections without a network."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._faults: list[Mapping[str, Any]] = []
        self._loop.set_exception_handler(lambda _loop, context: self._faults.append(context))
        self._state = SharedState(ListenSettings())
        self._api = make_client_api(LimitSettings())
        self._served = 0
        self._fast = connection_factory(self._api.app, self._state, self._loop)
        config = loaded_config(self._api.app)
        self._general = lambda: HttpConnection(config, self._state, {}, self._loop)

    def close(self) -> None:
        """End the loop."""
        self._loop.close()

    def fast(self, data: bytes) -> object:
        """Serve a request as a listener of clients does: the fast path takes those that it can, the parser the
        others."""
        return self._loop.run_until_complete(self._served_on(self._fast(), data))

    def general(self, data: bytes) -> object:
        """Serve a request by the parser and ASGI alone."""
        return self._loop.run_until_complete(self._served_on(self._general(), data))

    async def _served_on(self, connection: Any, data: bytes) -> bytes:
        self._served += 1
        if self._served % 500 == 0:  # drop objects that mutants have written
            self._api.kv.objects.clear()
            self._api.kv.requests.clear()
            self._api.kv.isolations.clear()
            self._api.queue.asked.clear()
        with structlog.testing.capture_logs() as logged:
            sent = _Sent()
            connection.connection_made(sent)
            connection.data_received(data)
            await self._settled(sent)
            if not sent.is_closing():
                connection.eof_received()
                await self._settled(sent)
            connection.connection_lost(None)
            await self._ended()
        assert not self._faults, self._faults
        answer = bytes(sent.data)
        assert not answer or answer.startswith(b"HTTP/1.1 "), answer[:80]
        assert b"HTTP/1.1 500" not in answer, (answer[:300], logged)
        return answer

    async def _settled(self, sent: _Sent) -> None:
        """Run the loop until nothing more is written."""
        quiet, length = 0, -1
        for _ in range(TURNS_MAX):
            await asyncio.sleep(0)
            quiet = quiet + 1 if len(sent.data) == length else 0
            length = len(sent.data)
            if quiet > 3 and len(asyncio.all_tasks(self._loop)) == 1:
                return
            if quiet > 40:  # an incomplete request, which waits for its client
                return

    async def _ended(self) -> None:
        """Run the loop until all requests of the connection have ended after its client left."""
        for _ in range(TURNS_MAX):
            if len(asyncio.all_tasks(self._loop)) == 1:
                return
            await asyncio.sleep(0)
        raise AssertionError(f"a request outlives its connection: {asyncio.all_tasks(self._loop)}")


def _batches(form: Any) -> Callable[[bytes], object]:
    settings = LimitSettings()
    return lambda body: [form.write_request(item, settings.object_bytes) for item in form.items(body, settings)]


def _http_targets(driver: HttpDriver) -> Iterator[MutationTarget]:
    yield MutationTarget("HTTP: fast path's parser", REQUESTS, lambda data: read_whole(data, 65_536), Encoding.TEXT)
    yield MutationTarget("HTTP: a client's connection", REQUESTS, driver.fast, Encoding.TEXT)
    yield MutationTarget("HTTP: the general parser", REQUESTS, driver.general, Encoding.TEXT)
    extras = [b"gzip", [[b"x-riak-meta-a", b"b"]], [[b"b", b"k", b"t"]], [[b"n_int", b"1"]]]
    batch = packed([[b"default", b"b", b"k", b"v", b"text/plain", None, extras, b"r"], [b"default", b"b", b"k", None]])
    refused = (IsthmusError, RequestRefused)
    yield MutationTarget("batches in msgpack", batch, _batches(MsgpackForm()), Encoding.MSGPACK, refused)
    yield MutationTarget("batches in JSON", (_PUT_ITEMS,), _batches(JsonForm(puts=True)), Encoding.JSON, refused)


@contextmanager
def mutation_targets() -> Iterator[list[MutationTarget]]:
    """All targets; those of HTTP have an event loop, which ends with the block."""
    driver = HttpDriver()
    try:
        yield [
            *_node_targets(),
            *_stored_targets(),
            *_cluster_targets(),
            *_document_targets(),
            *_http_targets(driver),
        ]
    finally:
        driver.close()
