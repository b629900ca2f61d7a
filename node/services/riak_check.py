"""Check beforehand whether a Riak could be fetched from, and what of its settings does not fit.

`look` asks each node of the Riak, without taking a change; it blocks, so it runs in a thread. `judged` turns the
answers into one row for each check (pure): ok, warn, fail, or unknown if it could not be checked, and the remedy.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from isthmus.node.services.link_check import FAIL, OK, UNKNOWN, WARN
from isthmus.repl.http.client import HttpRefused, PeerCredentials
from isthmus.repl.model.errors import IsthmusError
from isthmus.sink.riak_client import RiakClient
from isthmus.sink.riak_requests import QueueLengths

TIMEOUT_MS: Final = 3_000
"""How long a node may take for one answer: short, because an operator waits."""

BUCKETS_TIMEOUT_MS: Final = 10_000
"""How long it may take to list the buckets, a fold over all keys; beyond it the types are unknown."""

OLDEST: Final = (2, 9, 1)
"""The first version with queues for other clusters."""

NOT_BY_HTTP: Final = "delete_mode"
"""What no request can tell: this row is always unknown."""

_CONFIGURED: Final = "in the configuration of each node there, then restart it"

_VERSION: Final = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")


class NodeAnswers(NamedTuple):
    """The answers of one node of a Riak, or the errors of the requests. `lengths` None: no such queue."""

    url: str
    stats: Mapping[str, Any] | IsthmusError
    lengths: QueueLengths | IsthmusError | None


class RiakAnswers(NamedTuple):
    """What a Riak tells. `types`: bucket type -> its properties, None where there is no such type."""

    nodes: Sequence[NodeAnswers]
    live_nodes: Sequence[str] | IsthmusError
    buckets: Collection[bytes] | IsthmusError
    """Bucket types with keys."""
    types: Mapping[bytes, Mapping[str, Any] | IsthmusError | None]


def look(
    urls: Sequence[str], queue: str, access: PeerCredentials, types: Collection[bytes], named: Collection[bytes]
) -> RiakAnswers:
    """Ask the nodes at `urls`. `types`: this cluster's bucket types; `named`: those that are to be taken, empty for
    all."""
    clients = [RiakClient(url, access, timeout_ms=TIMEOUT_MS, fold_timeout_ms=BUCKETS_TIMEOUT_MS) for url in urls]
    try:
        nodes = [
            NodeAnswers(one.url, _answer(one.stats), _answer(lambda c=one: c.queue_lengths(queue))) for one in clients
        ]
        reached = [one for one, found in zip(clients, nodes, strict=True) if not isinstance(found.stats, IsthmusError)]
        first = (reached or clients)[0]
        listed: Any = _answer(first.buckets) if reached else nodes[0].stats
        with_keys: set[bytes] = set() if isinstance(listed, IsthmusError) else {kind for kind, _ in listed}
        buckets: Collection[bytes] | IsthmusError = listed if isinstance(listed, IsthmusError) else with_keys
        wanted = sorted(set(named) or {*types, *with_keys})
        properties = {kind: _answer(lambda name=kind: first.properties(name)) for kind in wanted if reached}
        return RiakAnswers(nodes, _answer(first.live_nodes), buckets, properties)
    finally:
        for one in clients:
            one.abort()


def _answer(request: Any) -> Any:
    try:
        return request()
    except IsthmusError as error:
        return error


def judged(
    queue: str, found: RiakAnswers, here: Mapping[bytes, bool], named: Collection[bytes]
) -> list[dict[str, str]]:
    """[{"what", "state", "found", "right"}]. `here`: this cluster's bucket types, with their allow_mult; `named`: those
    that are to be taken, empty for all."""
    rows: list[dict[str, str]] = []

    def row(what: str, state: str, answer: str, right: str = "") -> None:
        rows.append({"what": what, "state": state, "found": answer, "right": right})

    _judge_reach(row, found.nodes)
    _judge_version(row, found.nodes)
    _judge_queue(row, queue, found.nodes)
    _judge_nodes(row, found)
    _judge_types(row, found, here, named)
    row(
        NOT_BY_HTTP,
        UNKNOWN,
        "no request tells it",
        "delete_mode = keep in the configuration of each node there, then restart it",
    )
    return rows


def _judge_reach(row: Any, nodes: Sequence[NodeAnswers]) -> None:
    silent = [one for one in nodes if isinstance(one.stats, IsthmusError)]
    refused = [one for one in silent if isinstance(one.stats, HttpRefused) and one.stats.status in (401, 403)]
    if refused:
        row(
            "reach",
            FAIL,
            str(refused[0].stats),
            "--peer-user and --peer-password-file of a user that may riak_kv.get there",
        )
    elif silent:
        row("reach", FAIL, str(silent[0].stats), "the URL of each node's HTTP or HTTPS listener")
    else:
        row("reach", OK, f"{len(nodes)} of {len(nodes)} nodes answer")
    plain = [one.url for one in nodes if not one.url.startswith("https://")]
    if plain:
        row("tls", WARN, "not protected", "https://, where the network is not trusted")
    elif silent:
        row("tls", UNKNOWN, "not reached")
    else:
        row("tls", OK, "the certificates are valid")


def _judge_version(row: Any, nodes: Sequence[NodeAnswers]) -> None:
    told = sorted({_version(one.stats) for one in nodes if not isinstance(one.stats, IsthmusError)})
    if not told:
        row("version", UNKNOWN, "not reached")
        return
    for version in told:
        parsed = _VERSION.match(version)
        if parsed is None:
            row("version", UNKNOWN, version or "the Riak does not tell it", "2.9.1 or later")
        elif tuple(int(part or 0) for part in parsed.groups()) < OLDEST:
            right = "2.9.1 or later for its queues; an older one can be seeded: isthmus riak seed NAME --by-keys"
            row("version", FAIL, version, right)
        else:
            row("version", OK, version)


def _version(stats: Any) -> str:
    found = stats.get("riak_kv_version")
    return found if isinstance(found, str) else ""


def _judge_queue(row: Any, queue: str, nodes: Sequence[NodeAnswers]) -> None:
    lacking = [one.url for one in nodes if one.lengths is None]
    unknown = [one for one in nodes if isinstance(one.lengths, IsthmusError)]
    right = f"replrtq_enablesrc = enabled and replrtq_srcqueue = {queue}:any {_CONFIGURED}"
    if lacking:
        row("queue", FAIL, f"no queue {queue} at {', '.join(lacking)}", right)
    elif unknown:
        refused = [one for one in unknown if isinstance(one.lengths, HttpRefused) and one.lengths.status == 404]
        state = FAIL if refused else UNKNOWN
        row("queue", state, str((refused or unknown)[0].lengths), right if refused else "")
    else:
        waiting = sum(sum(one.lengths) for one in nodes if isinstance(one.lengths, QueueLengths))
        row("queue", OK, f"{queue} is at {len(nodes)} nodes; {waiting} changes wait there")


def _judge_nodes(row: Any, found: RiakAnswers) -> None:
    if isinstance(found.live_nodes, IsthmusError):
        row("nodes", UNKNOWN, str(found.live_nodes), "name all nodes of the Riak: each gives out its own changes")
    elif len(found.live_nodes) > len(found.nodes):
        listed = ", ".join(found.live_nodes)
        right = "all of them in urls: the changes of a node that is not asked stay there"
        row("nodes", FAIL, f"{len(found.nodes)} are named, {len(found.live_nodes)} live: {listed}", right)
    else:
        row("nodes", OK, f"{len(found.live_nodes)} live, {len(found.nodes)} are named")


def _judge_types(row: Any, found: RiakAnswers, here: Mapping[bytes, bool], named: Collection[bytes]) -> None:
    wanted = set(named)
    if isinstance(found.buckets, IsthmusError):
        row("bucket types", UNKNOWN, f"which have keys is not known: {found.buckets}", "isthmus bucket-type list")
    else:
        missing = sorted(kind for kind in found.buckets if kind not in here and (not wanted or kind in wanted))
        if missing:
            names = ", ".join(map(_shown, missing))
            right = f"isthmus bucket-type create {_shown(missing[0])} here, with the same properties, first"
            row("bucket types", FAIL, f"missing here: {names}", right)
        else:
            row("bucket types", OK, "this cluster has all types that have keys there")
    for kind, properties in sorted(found.types.items()):
        _judge_type(row, kind, properties, here.get(kind))


def _judge_type(
    row: Any, kind: bytes, properties: Mapping[str, Any] | IsthmusError | None, allow_mult_here: bool | None
) -> None:
    what = f"type {_shown(kind)}"
    if isinstance(properties, IsthmusError):
        row(what, UNKNOWN, str(properties))
        return
    if properties is None:
        row(what, OK, "the Riak has no such type")
        return
    allow_mult, dvv = properties.get("allow_mult") is True, properties.get("dvv_enabled") is True
    there = f"allow_mult {_word(allow_mult)}, dvv_enabled {_word(dvv)}"
    if properties.get("datatype"):
        right = "nothing, if no application writes it here: its values are opaque"
        row(what, WARN, f"{there}, data type {properties['datatype']}", right)
    elif properties.get("consistent") is True:
        row(what, FAIL, "strongly consistent", "the Riak does not replicate it")
    elif allow_mult and not dvv:
        right = f'riak admin bucket-type update {_shown(kind)} \'{{"props":{{"dvv_enabled":true}}}}\' there'
        row(what, FAIL, there, f"{right}: siblings without dots become dead letters")
    elif allow_mult_here is not None and allow_mult != allow_mult_here:
        right = f"the same on both sides: isthmus bucket-type set {_shown(kind)} allow_mult={_word(allow_mult)}"
        row(what, WARN, f"{there}; allow_mult here: {_word(allow_mult_here)}", right)
    else:
        row(what, OK, there)


def _word(flag: bool) -> str:
    return "true" if flag else "false"


def _shown(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
