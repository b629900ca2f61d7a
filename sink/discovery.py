"""Which nodes of other clusters to fetch from: the seeds of the config, and the live nodes that they tell of.

Every node answers `GET /cluster/nodes` with the live nodes of its cluster, so one that is reached is enough to know
all. `parse` and `wanted` are pure; `ask` is one request. Who runs this, and when, is `sink.service`.

    a seed                    is fetched from, and stands as failing while it is down; unless it answers with a list in
                              which it does not stand: then it is another name of a listed node, or a balancer
    a cluster that answers    the union of what its nodes list; one that is no longer listed, and no seed, goes
    a cluster that does not   what was known of it stays, and back-off paces it

A cluster whose `http` listeners take TLS and plain text (`tls.http = "allow"`) lists its nodes with http://. A seed
that is dialled with TLS passes its scheme on to them (`dialled`). What is left is passed over: addresses of another
scheme, and addresses that can only mean the node itself (loopback, any) unless the seed was reached at such an address,
too. Where all of them are, the seed stays. What is passed over is shown (`passed_over`).
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from isthmus.config.validation import check_peer_url
from isthmus.queues.wire import UnknownFetchVersion
from isthmus.repl.http.client import HttpPeer, as_protected
from isthmus.repl.model.errors import CodecError
from isthmus.sink.scheduler import LinkName

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

TLS_MODES: Final = ("off", "allow", "require")
"""What a list may say of its node's `http` listener (`tls.http`)."""


class LinkTarget(NamedTuple):
    """Where a link points: the uuid of the cluster that must answer there (None: not known yet), and the seed of the
    config to which it belongs, whose certificates, token and cluster's name it shares."""

    cluster: bytes | None
    seed: LinkName


class PeerNodes(NamedTuple):
    """What one peer says of its cluster: uuid, name, and the URLs of its live nodes. `tls`: the mode of its own `http`
    listener, None from programs that do not say it."""

    cluster: bytes
    cluster_name: str
    urls: tuple[str, ...]
    tls: str | None = None


class PassedOver(NamedTuple):
    """A listed node of another cluster from which nothing is fetched."""

    name: LinkName
    seed: LinkName
    cluster: bytes
    cluster_name: str
    reason: str


def parse(body: bytes) -> PeerNodes:
    """A peer's list. Raises CodecError for anything else, UnknownFetchVersion among them."""
    try:
        fields = json.loads(body)
        if (version := fields.get("v", VERSION)) != VERSION:
            raise UnknownFetchVersion(f"a list of nodes of version {version!r:.40}, this program speaks {VERSION}")
        uuid, name = bytes.fromhex(fields["cluster_uuid"]), fields["cluster"]
        urls = tuple(check_peer_url(node["http"]) for node in fields["nodes"])
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise CodecError(f"not a list of a cluster's nodes: {error!r:.200}") from error
    if len(uuid) != 16 or type(name) is not str or not 0 < len(name) <= NAME_MAX or len(urls) > NODES_MAX:
        raise CodecError("not a list of a cluster's nodes: uuid, name or number of nodes is out of range")
    tls = fields.get("tls")
    return PeerNodes(uuid, name, urls, tls if tls in TLS_MODES else None)


def ask(peer: HttpPeer) -> PeerNodes:
    """What a peer says. Raises PeerFault, CodecError."""
    return parse(peer.get(PATH, timeout_ms=TIMEOUT_MS, limit_bytes=ANSWER_BYTES_MAX))


def wanted(
    seeds: Iterable[LinkName], known: Mapping[LinkName, LinkTarget], told: Mapping[str, PeerNodes | None]
) -> dict[LinkName, LinkTarget]:
    """The links to have. `known` are those that there are; `told` is what each seed's URL said, None for no (good)
    answer."""
    by_queue: dict[str, list[LinkName]] = {}
    for seed in seeds:
        by_queue.setdefault(seed.queue, []).append(seed)
    found: dict[LinkName, LinkTarget] = {}
    for queue, mine in by_queue.items():
        answered: set[bytes] = set()
        aliases: set[LinkName] = set()
        for seed in mine:
            answer = told.get(seed.peer)
            if answer is None or (seed in known and known[seed].cluster not in (None, answer.cluster)):
                continue
            answered.add(answer.cluster)
            usable = [url for url in dialled(answer, seed.peer) if not _obstacle(url, seed.peer)]
            for url in usable:
                found.setdefault(LinkName(queue, url), LinkTarget(answer.cluster, seed))
            if usable and seed.peer not in usable:
                aliases.add(seed)
        for seed in mine:
            if seed not in aliases:
                aim = found.get(seed) or known.get(seed)
                found[seed] = LinkTarget(None if aim is None else aim.cluster, seed)
        for name, aim in known.items():
            if name.queue == queue and aim.cluster is not None and aim.cluster not in answered:
                found.setdefault(name, aim)
    return {name: aim for name, aim in found.items() if name in by_queue[name.queue] or not _doubled(name, found)}


def _doubled(name: LinkName, found: Mapping[LinkName, LinkTarget]) -> bool:
    """Whether another link leads to the same node, by the other scheme: that of a seed stays, else the one with TLS.
    So it is where seeds of one queue have both schemes."""
    scheme, _, place = name.peer.partition("://")
    other = name._replace(peer=f"{'http' if scheme == 'https' else 'https'}://{place}")
    return other in found and (scheme == "http" or found[other].seed == other)


def passed_over(
    seeds: Iterable[LinkName], found: Mapping[LinkName, LinkTarget], told: Mapping[str, PeerNodes | None]
) -> dict[LinkName, PassedOver]:
    """The nodes that seeds listed and that no link of `found` (see `wanted`) leads to, with the reason. None of a
    cluster to which there are as many links as it lists nodes: its addresses differ, and each node is fetched from."""
    result: dict[LinkName, PassedOver] = {}
    for seed in seeds:
        answer = told.get(seed.peer)
        if answer is None or (seed in found and found[seed].cluster not in (None, answer.cluster)):
            continue
        links = sum(n.queue == seed.queue and (n == seed or a.cluster == answer.cluster) for n, a in found.items())
        if links >= len(answer.urls):
            continue
        for url in dialled(answer, seed.peer):
            name = LinkName(seed.queue, url)
            if name not in found and (why := _obstacle(url, seed.peer)):
                result.setdefault(name, PassedOver(name, seed, answer.cluster, answer.cluster_name, why))
    return result


def dialled(answer: PeerNodes, seed_url: str) -> list[str]:
    """The listed addresses as they are to be dialled: with TLS where the seed was reached with it and its cluster takes
    both. A program that does not say so takes both if it lists the seed's own address with http://."""
    plain = "http://" + seed_url.removeprefix("https://")
    takes_both = answer.tls == "allow" or (answer.tls is None and plain in answer.urls)
    return [as_protected(url, seed_url) if takes_both else url for url in answer.urls]


def _obstacle(url: str, seed_url: str) -> str:
    """Why an address that a seed lists is not dialled: protection as the seed's, and no address of the seed's own
    machine; "" when it is."""
    if url.partition("://")[0] != seed_url.partition("://")[0]:
        return f"it is listed with another scheme than the peer {seed_url} has in the config"
    if _only_here(url) and not _only_here(seed_url):
        return "it is listed with an address that only its own machine can reach (there: listen.http, listen.advertise)"
    return ""


def _only_here(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified
