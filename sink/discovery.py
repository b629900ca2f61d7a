"""Which nodes of other clusters to fetch from: the seeds of the config, and the live nodes that they tell of.

Every node answers `GET /cluster/nodes` with the live nodes of its cluster, so one that is reached is enough to know
all. `parse` and `wanted` are pure; `ask` is one request. Who runs this, and when, is `sink.actor`.

    a seed                    is fetched from, and stands as failing while it is down; unless it answers with a list in
                              which it does not stand: then it is another name of a listed node, or a balancer
    a cluster that answers    the union of what its nodes list; one that is no longer listed, and no seed, goes
    a cluster that does not   what was known of it stays, and back-off paces it

A listed address that can only mean the node itself (loopback, any) is passed over unless its teller was reached at
such an address, too, and so is one of another scheme; where all of them are, the seed that told stays.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from config.rules import check_peer_url
from queues.wire import UnknownVersion
from repl.model.errors import CodecError
from repl.transport.http_client import HttpPeer
from sink.roster import LinkName

PATH: Final = "/cluster/nodes"

VERSION: Final = 1
"""Of the list's form, its field "v"; a list without it is of this one. Another one is refused, and links stay as they
are."""

TIMEOUT_MS: Final = 3_000
"""How long a peer may take to list its nodes; it reads them from memory."""

ANSWER_BYTES_MAX: Final = 256_000
"""Largest list taken: 1,000 nodes have 100 KB."""

NODES_MAX: Final = 256
"""Most nodes of one cluster that are fetched from; a longer list is not believed."""

NAME_MAX: Final = 64


class Aim(NamedTuple):
    """Where a link points: the uuid of the cluster that must answer there (None: not known yet), and the seed of the
    config to which it belongs, whose certificates, token and cluster's name it shares."""

    cluster: bytes | None
    seed: LinkName


class Told(NamedTuple):
    """What one peer says of its cluster: uuid, name, and the URLs of its live nodes."""

    cluster: bytes
    cluster_name: str
    urls: tuple[str, ...]


def parse(body: bytes) -> Told:
    """A peer's list. Raises CodecError for anything else, UnknownVersion among them."""
    try:
        fields = json.loads(body)
        if (version := fields.get("v", VERSION)) != VERSION:
            raise UnknownVersion(f"a list of nodes of version {version!r:.40}, this program speaks {VERSION}")
        uuid, name = bytes.fromhex(fields["cluster_uuid"]), fields["cluster"]
        urls = tuple(check_peer_url(node["http"]) for node in fields["nodes"])
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise CodecError(f"not a list of a cluster's nodes: {error!r:.200}") from error
    if len(uuid) != 16 or type(name) is not str or not 0 < len(name) <= NAME_MAX or len(urls) > NODES_MAX:
        raise CodecError("not a list of a cluster's nodes: uuid, name or number of nodes is out of range")
    return Told(uuid, name, urls)


def ask(peer: HttpPeer) -> Told:
    """What a peer says. Raises PeerFault, CodecError."""
    return parse(peer.get(PATH, timeout_ms=TIMEOUT_MS, limit_bytes=ANSWER_BYTES_MAX))


def wanted(
    seeds: Iterable[LinkName], known: Mapping[LinkName, Aim], told: Mapping[str, Told | None]
) -> dict[LinkName, Aim]:
    """The links to have. `known` are those that there are; `told` is what each seed's URL said, None for no (good)
    answer."""
    by_queue: dict[str, list[LinkName]] = {}
    for seed in seeds:
        by_queue.setdefault(seed.queue, []).append(seed)
    found: dict[LinkName, Aim] = {}
    for queue, mine in by_queue.items():
        answered: set[bytes] = set()
        aliases: set[LinkName] = set()
        for seed in mine:
            answer = told.get(seed.peer)
            if answer is None or (seed in known and known[seed].cluster not in (None, answer.cluster)):
                continue
            answered.add(answer.cluster)
            usable = [url for url in answer.urls if _reachable(url, seed.peer)]
            for url in usable:
                found.setdefault(LinkName(queue, url), Aim(answer.cluster, seed))
            if usable and seed.peer not in usable:
                aliases.add(seed)
        for seed in mine:
            if seed not in aliases:
                aim = found.get(seed) or known.get(seed)
                found[seed] = Aim(None if aim is None else aim.cluster, seed)
        for name, aim in known.items():
            if name.queue == queue and aim.cluster is not None and aim.cluster not in answered:
                found.setdefault(name, aim)
    return found


def _reachable(url: str, teller: str) -> bool:
    """Whether an address that `teller` listed may be dialled: with no less protection than the teller's, too."""
    same_scheme = url.partition("://")[0] == teller.partition("://")[0]
    return same_scheme and (not _only_here(url) or _only_here(teller))


def _only_here(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified
