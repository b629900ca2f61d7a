"""Check whether a link to a queue of another cluster would work, before it is configured.

`look` sends the requests of a sink to the peer, without fetching changes or claiming the queue. It blocks, so it runs
in a thread. `judged` turns the answers into one row for each check (pure): ok, warn, fail, or unknown if it could not
be checked, and the remedy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from isthmus.repl.http.client import HttpPeer, HttpRefused, PeerCredentials
from isthmus.repl.machine import machine
from isthmus.repl.model.errors import CodecError, IsthmusError
from isthmus.repl.property_digests import ScopeDigests, differences, differences_shown, types_of
from isthmus.sink import discovery

TIMEOUT_MS: Final = 3_000
"""Timeout of each of the two requests: short, because an operator waits for them."""

ANSWER_BYTES_MAX: Final = 1_000_000
"""Longest answer about a queue: its bucket types with 8 bytes each."""

CLOCKS_APART_MS: Final = 1_000
"""Largest difference of two clusters' clocks without a warning: lag is shown in seconds."""

OK: Final = "ok"
WARN: Final = "warn"
FAIL: Final = "fail"
UNKNOWN: Final = "unknown"


class LinkCheckResult(NamedTuple):
    """The peer's answers about its cluster (`nodes`) and the queue, or the errors of the requests.

    `offset_ms`: the source's clock minus this node's, accurate to `exact_ms`."""

    nodes: discovery.PeerNodes | IsthmusError
    queue: Mapping[str, Any] | IsthmusError
    took_ms: int
    offset_ms: int | None = None
    exact_ms: int = 0


class Here(NamedTuple):
    """This cluster: uuid and name, bucket types, digests of their properties (in hex, and by scope), and whether it
    already fetches from the queue (`linked`)."""

    uuid: str
    cluster: str
    bucket_types: Collection[str]
    digests: Mapping[str, str]
    scopes: ScopeDigests | None
    linked: bool


def look(url: str, queue: str, access: PeerCredentials, wall_ms: Callable[[], int]) -> LinkCheckResult:
    """Send the two requests to the peer at `url`. Blocks for at most twice TIMEOUT_MS."""
    peer = HttpPeer(url, 1, access)
    began_s = machine().monotonic_s()
    try:
        nodes: discovery.PeerNodes | IsthmusError = discovery.ask(peer)
    except IsthmusError as error:
        nodes = error
    took_ms = int((machine().monotonic_s() - began_s) * 1000)
    try:
        if isinstance(nodes, IsthmusError) and not isinstance(nodes, HttpRefused):
            return LinkCheckResult(nodes, nodes, took_ms)
        asked_ms = wall_ms()
        body = peer.get(f"/queues/{quote(queue, safe='')}/link", timeout_ms=TIMEOUT_MS, limit_bytes=ANSWER_BYTES_MAX)
        answered_ms = wall_ms()
        about = _parsed(body)
        offset_ms = about["wall_ms"] - (asked_ms + answered_ms) // 2
        return LinkCheckResult(nodes, about, took_ms, offset_ms, (answered_ms - asked_ms + 1) // 2)
    except IsthmusError as error:
        return LinkCheckResult(nodes, error, took_ms)
    finally:
        peer.abort()


_TYPES: Final = (("cluster", str), ("cluster_uuid", str), ("filter", str), ("serving", str), ("publishing", str),
                 ("blocked", bool), ("wall_ms", int), ("bucket_types", dict))  # fmt: skip


def _parsed(body: bytes) -> dict[str, Any]:
    """A source's answer about a queue. Raises CodecError."""
    try:
        about = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise CodecError(f"the answer is not a link description: {error}") from error
    if not isinstance(about, dict) or any(type(about.get(name)) is not kind for name, kind in _TYPES):
        raise CodecError("the answer is not a link description: fields are missing, or of a wrong type")
    owner, types = about.get("owner"), about["bucket_types"].values()
    if (owner is not None and not isinstance(owner, dict)) or not all(isinstance(one, dict) for one in types):
        raise CodecError("the answer is not a link description: owner or bucket types are of a wrong type")
    try:
        _places(about)
    except (AttributeError, TypeError, ValueError) as error:
        raise CodecError(f"the answer is not a link description: places of properties ({error})") from error
    return about


def _places(about: Mapping[str, Any]) -> ScopeDigests | None:
    """The source's digests of properties by bucket type and bucket.

    None: too many to send, or the source runs a version that does not send them."""
    places = about.get("places")
    if places is None:
        return None
    return {
        kind.encode(): {bytes.fromhex(name): bytes.fromhex(digest) for name, digest in found.items()}
        for kind, found in places.items()
    }


def judged(url: str, queue: str, expected: str, found: LinkCheckResult, here: Here) -> list[dict[str, str]]:
    """[{"what", "state", "found", "right"}]. `expected`: the cluster that should answer; "" for any."""
    rows: list[dict[str, str]] = []

    def row(what: str, state: str, answer: str, right: str = "") -> None:
        rows.append({"what": what, "state": state, "found": answer, "right": right})

    nodes, about = found.nodes, found.queue
    if isinstance(nodes, IsthmusError) and not isinstance(nodes, HttpRefused):
        row(
            "reach",
            FAIL,
            str(nodes),
            "URL of a node's HTTP listener, reachable from this node; for TLS, [tls] that fits",
        )
    else:
        row("reach", OK, f"answers in {found.took_ms} ms")
    _judge_tls(row, url, expected, nodes)
    _judge_token(row, nodes, about)
    _judge_cluster(row, expected, nodes, about, here)
    if isinstance(about, IsthmusError):
        _judge_no_queue(row, about, nodes)
    else:
        _judge_queue(row, queue, about, here, found)
    if here.linked:
        row("link", WARN, "this cluster fetches from it already", "isthmus sink list")
    return rows


Row = Callable[..., None]


def _judge_tls(row: Row, url: str, expected: str, nodes: discovery.PeerNodes | IsthmusError) -> None:
    if not url.startswith("https://"):
        right = "https://, where the network is not trusted" + (
            "; without it --peer-cluster cannot be verified" if expected else ""
        )
        row("tls", WARN, "not protected", right)
    elif isinstance(nodes, IsthmusError) and not isinstance(nodes, HttpRefused):
        row("tls", UNKNOWN, "not reached")
    else:
        row("tls", OK, f"the certificate is valid{f' and names cluster {expected}' if expected else ''}")


def _judge_token(row: Row, nodes: object, about: object) -> None:
    refused = next((e for e in (nodes, about) if isinstance(e, HttpRefused) and e.status in (401, 403)), None)
    if refused is not None:
        row("token", FAIL, str(refused), "--peer-token-file with a token that has the role replicate there")
    elif isinstance(nodes, IsthmusError):
        row("token", UNKNOWN, "not reached")
    else:
        row("token", OK, "accepted")


def _judge_cluster(row: Row, expected: str, nodes: object, about: object, here: Here) -> None:
    if isinstance(nodes, discovery.PeerNodes):
        uuid, name = nodes.cluster.hex(), nodes.cluster_name
    elif isinstance(about, Mapping):
        uuid, name = about["cluster_uuid"], about["cluster"]
    else:
        row("cluster", UNKNOWN, "not known")
        return
    if uuid == here.uuid:
        row("cluster", FAIL, f"{name} is this cluster itself", "a node of another cluster")
    elif expected and name != expected:
        row("cluster", FAIL, f"{name} ({uuid})", f"{expected}, as given with --peer-cluster")
    else:
        row("cluster", OK, f"{name} ({uuid})")


def _judge_no_queue(row: Row, error: IsthmusError, nodes: object) -> None:
    if isinstance(error, HttpRefused) and error.reason == "unknown-queue":
        row("queue", FAIL, str(error), "isthmus queue register NAME there, or the name of an existing queue")
    elif _lacks_path(error) and _lacks_path(nodes):
        row(
            "queue",
            UNKNOWN,
            "does not know the requests of sinks; is this a node's client listener?",
            "URL of listen.http of a node there, not of listen.admin",
        )
    elif _lacks_path(error):
        row(
            "queue",
            UNKNOWN,
            "the source runs a version that does not describe its queues",
            "upgrade the source, or add the peer unchecked",
        )
    else:
        row("queue", UNKNOWN, str(error) if error is not nodes else "not reached")


def _lacks_path(answer: object) -> bool:
    """Whether an answer says that there is no such path, as of another listener or of an older version."""
    return isinstance(answer, HttpRefused) and answer.status in (404, 405, 501)


def _judge_queue(row: Row, queue: str, about: Mapping[str, Any], here: Here, found: LinkCheckResult) -> None:
    row("queue", OK, f"{queue} exists")
    owner = about.get("owner")
    if owner is None:
        row("owner", OK, f"none yet: the first cluster that fetches becomes the owner ({here.cluster})")
    elif owner.get("uuid") == here.uuid:
        row("owner", OK, f"this cluster, {here.cluster}")
    else:
        row(
            "owner",
            FAIL,
            f"cluster {owner.get('cluster')}",
            f"a queue of its own for this cluster; or isthmus queue release {queue} there",
        )
    if about["blocked"]:
        row("filter", WARN, about["filter"], "another filter, for changes in real time: this one offers repairs only")
    else:
        row("filter", OK, about["filter"])
    for what in ("serving", "publishing"):
        state = about[what]
        cures = {"suspended": f"isthmus queue resume {queue}{' --publishing' * (what == 'publishing')} there",
                 "off": "source.enabled = true there"}  # fmt: skip
        row(what, OK if state == "running" else WARN, state, cures.get(state, ""))
    types = about["bucket_types"]
    lacking = sorted(name for name, one in types.items() if one.get("offered") and name not in here.bucket_types)
    if lacking:
        right = f"isthmus bucket-type create {lacking[0]} here, before it has changes"
        row("bucket types", FAIL, f"missing here: {', '.join(lacking)}", right)
    else:
        row("bucket types", OK, "this cluster has all bucket types that the queue offers")
    ours, theirs = (
        {name.encode(): str(digests[name]).encode() for name in here.bucket_types if digests.get(name)}
        for digests in (here.digests, {name: one.get("digest") for name, one in types.items()})
    )
    both = {name.encode() for name in types}
    differ = [one for one in differences(ours, theirs, here.scopes, _places(about)) if one.bucket_type in both]
    if differ:
        right = f"isthmus bucket-type properties {types_of(differ)[0]} on both sides: set the same values"
        row("properties", WARN, f"differ: {differences_shown(differ)}", right)
    else:
        row("properties", OK, "the properties that must agree do")
    offset_ms, exact_ms = found.offset_ms or 0, found.exact_ms
    side = "ahead" if offset_ms > 0 else "behind"
    clock = f"its clock is {abs(offset_ms) / 1000:.1f} s {side}, +- {exact_ms / 1000:.1f} s"
    apart = abs(offset_ms) - exact_ms > CLOCKS_APART_MS
    row(
        "clocks",
        WARN if apart else OK,
        clock,
        "NTP on both sides: lag and the times of gaps are wrong by this difference" if apart else "",
    )
