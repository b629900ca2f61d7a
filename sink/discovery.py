"""Discovery: which nodes of other clusters to fetch from, by the config's seeds and the live nodes that they list.

Every node answers `GET /cluster/nodes` with the live nodes of its cluster, so one reachable seed is enough. `parse` and
`wanted` are pure; `ask` is one request. `sink.service` runs the discovery.

    a seed                    has a link, which fails while the seed is down; but not if its answer does not list the
                              seed: then the seed is another name of a listed node, or a load balancer
    a cluster that answers    has links to the union of what its nodes list; a node that is not listed any more, and is
                              no seed, loses its link
    a cluster that does not   keeps its links; back-off paces them

A cluster whose `http` listeners accept TLS and plain text (`tls.http = "allow"`) lists its nodes with http://. A seed
that is dialled with TLS applies its scheme to them (`dialled`). Passed over, and reported (`passed_over`), are
addresses of another scheme, and addresses that only reach the listing machine itself (loopback, any), unless the seed
was reached at such an address, too. If all addresses are passed over, the seed keeps its link.
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
"""Version of the list, its field "v"; a list without the field has this version. Another version is refused, and links
stay as they are."""

TIMEOUT_MS: Final = 3_000
"""How long a peer may take to list its nodes, which it has in memory."""

ANSWER_BYTES_MAX: Final = 256_000
"""Largest accepted list: 1,000 nodes have 100 KB."""

NODES_MAX: Final = 256
"""Most nodes of one cluster to fetch from; a longer list is refused."""

NAME_MAX: Final = 64

TLS_MODES: Final = ("off", "allow", "require")
"""Values of `tls.http` in a list: the mode of the node's `http` listener."""


class LinkTarget(NamedTuple):
    """Target of a link: uuid of the cluster that must answer (None: not known yet), and the seed of the config whose
    certificates, token and cluster name it uses."""

    cluster: bytes | None
    seed: LinkName


class PeerNodes(NamedTuple):
    """A peer's answer: uuid and name of its cluster, and the URLs of the live nodes. `tls`: the mode of its own `http`
    listener, None from versions that do not send it."""

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
    """Decode a peer's list. Raises CodecError, UnknownFetchVersion."""
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
    """Request a peer's list. Raises PeerFault, CodecError."""
    return parse(peer.get(PATH, timeout_ms=TIMEOUT_MS, limit_bytes=ANSWER_BYTES_MAX))


def wanted(
    seeds: Iterable[LinkName], known: Mapping[LinkName, LinkTarget], answers: Mapping[str, PeerNodes | None]
) -> dict[LinkName, LinkTarget]:
    """The links to have. `known` are the present ones; `answers` has the answer of each seed's URL, None for no (good)
    answer."""
    by_queue: dict[str, list[LinkName]] = {}
    for seed in seeds:
        by_queue.setdefault(seed.queue, []).append(seed)
    found: dict[LinkName, LinkTarget] = {}
    for queue, mine in by_queue.items():
        answered: set[bytes] = set()
        aliases: set[LinkName] = set()
        for seed in mine:
            answer = answers.get(seed.peer)
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
                target = found.get(seed) or known.get(seed)
                found[seed] = LinkTarget(None if target is None else target.cluster, seed)
        for name, target in known.items():
            if name.queue == queue and target.cluster is not None and target.cluster not in answered:
                found.setdefault(name, target)
    return {name: target for name, target in found.items() if name in by_queue[name.queue] or not _doubled(name, found)}


def _doubled(name: LinkName, found: Mapping[LinkName, LinkTarget]) -> bool:
    """Whether another link leads to the same node by the other scheme, which happens when seeds of one queue have both
    schemes: the link of a seed is kept, else the one with TLS."""
    scheme, _, place = name.peer.partition("://")
    other = name._replace(peer=f"{'http' if scheme == 'https' else 'https'}://{place}")
    return other in found and (scheme == "http" or found[other].seed == other)


def passed_over(
    seeds: Iterable[LinkName], found: Mapping[LinkName, LinkTarget], answers: Mapping[str, PeerNodes | None]
) -> dict[LinkName, PassedOver]:
    """The nodes that seeds listed and no link of `found` (see `wanted`) leads to, with the reason. None of a cluster
    with as many links as it lists nodes: its addresses differ, and each node has a link."""
    result: dict[LinkName, PassedOver] = {}
    for seed in seeds:
        answer = answers.get(seed.peer)
        if answer is None or (seed in found and found[seed].cluster not in (None, answer.cluster)):
            continue
        links = sum(n.queue == seed.queue and (n == seed or t.cluster == answer.cluster) for n, t in found.items())
        if links >= len(answer.urls):
            continue
        for url in dialled(answer, seed.peer):
            name = LinkName(seed.queue, url)
            if name not in found and (why := _obstacle(url, seed.peer)):
                result.setdefault(name, PassedOver(name, seed, answer.cluster, answer.cluster_name, why))
    return result


def dialled(answer: PeerNodes, seed_url: str) -> list[str]:
    """The listed addresses with the scheme to dial: TLS where the seed was reached with TLS and its cluster accepts
    both. A version that does not send its mode accepts both if it lists the seed's own address with http://."""
    plain = "http://" + seed_url.removeprefix("https://")
    accepts_both = answer.tls == "allow" or (answer.tls is None and plain in answer.urls)
    return [as_protected(url, seed_url) if accepts_both else url for url in answer.urls]


def _obstacle(url: str, seed_url: str) -> str:
    """Why a listed address is not dialled: another scheme than the seed's, or reachable on the seed's machine only; ""
    when it is dialled."""
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
