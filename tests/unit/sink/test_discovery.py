"""Selection of the nodes of a cluster to fetch from: node lists, URL schemes, and nodes that are passed over."""

from __future__ import annotations

import json

import pytest

from isthmus.queues.wire import UnknownFetchVersion
from isthmus.repl.model.errors import CodecError
from isthmus.sink.discovery import LinkTarget, PeerNodes, dialled, parse, passed_over, wanted
from isthmus.sink.scheduler import LinkName

EAST, NORTH = b"e" * 16, b"n" * 16
E1, E2, E3 = (f"http://10.0.0.{n}:8098" for n in (1, 2, 3))
N1 = "http://10.1.0.1:8098"


def test_links_follow_the_nodes_listed_by_peers() -> None:
    """New nodes are fetched from, and removed ones are not. The last known nodes of a silent cluster stay, and a seed
    that is down is retried."""
    first, other = LinkName("q", E1), LinkName("r", N1)
    told = {E1: PeerNodes(EAST, "east", (E1, E2)), N1: None}
    found = wanted([first, other], {}, told)
    assert found == {
        first: LinkTarget(EAST, first),
        LinkName("q", E2): LinkTarget(EAST, first),
        other: LinkTarget(None, other),
    }
    found = wanted([first, other], found, {E1: PeerNodes(EAST, "east", (E1, E3)), N1: None})
    assert set(found) == {first, LinkName("q", E3), other}
    silent = wanted([first, other], found, {E1: None, N1: None})
    assert silent == found
    without_seed = wanted([first, LinkName("q", E2)], found, {E1: None, E2: PeerNodes(EAST, "east", (E2, E3))})
    assert set(without_seed) == {first, LinkName("q", E2), LinkName("q", E3)}, "a seed that is down is still tried"


def test_an_implausible_node_list_is_ignored() -> None:
    """Loopback addresses of a remote peer, other schemes, and another cluster behind a known address change nothing; a
    balancer is replaced by the nodes behind it."""
    seed = LinkName("q", E1)
    for urls in (("http://127.0.0.1:8098",), ("http://0.0.0.0:8098", "http://localhost:1"), ("https://10.0.0.1:8098",)):
        assert wanted([seed], {}, {E1: PeerNodes(EAST, "east", urls)}) == {seed: LinkTarget(None, seed)}
    here = LinkName("q", "http://localhost:1")
    near = wanted([here], {}, {here.peer: PeerNodes(EAST, "east", ("http://127.0.0.1:1",))})
    assert set(near) == {LinkName("q", "http://127.0.0.1:1")}
    known = {seed: LinkTarget(EAST, seed)}
    assert wanted([seed], known, {E1: PeerNodes(NORTH, "north", (E2,))}) == known
    balancer = LinkName("q", "http://lb:80")
    assert set(wanted([balancer], {}, {balancer.peer: PeerNodes(EAST, "east", (E1, E2))})) == {
        LinkName("q", E1),
        LinkName("q", E2),
    }


S1, S2, S3 = (url.replace("http", "https") for url in (E1, E2, E3))


@pytest.mark.parametrize("tls", ["allow", None])
def test_nodes_of_a_cluster_that_takes_both_are_dialled_as_their_seed_is(tls: str | None) -> None:
    """A cluster with `tls.http = "allow"` lists its nodes with http://. A seed that is dialled with TLS leads to all of
    them with TLS: to those of a program that says "allow", and to those of an older one that lists the seed itself."""
    seeds = [LinkName("q", S1), LinkName("q", S2)]
    told: dict[str, PeerNodes | None] = {s.peer: PeerNodes(EAST, "east", (E1, E2, E3), tls) for s in seeds}
    found = wanted(seeds, {}, told)
    assert {name.peer: aim.cluster for name, aim in found.items()} == {S1: EAST, S2: EAST, S3: EAST}
    assert passed_over(seeds, found, told) == {}


def test_a_seed_with_tls_never_leads_to_an_address_in_plain_text() -> None:
    """If nothing proves that the listed nodes accept TLS, they are passed over, with a reason, and the seed stays: for
    example behind a balancer that terminates TLS, or with a listener of the mode "off". A listed https:// address is
    not dialled for an http:// seed."""
    for name, told in (
        ("https://lb:443", PeerNodes(EAST, "east", (E1, E2))),
        (S1, PeerNodes(EAST, "east", (E1, E2), "off")),
    ):
        seed = LinkName("q", name)
        found = wanted([seed], {}, {name: told})
        assert found == {seed: LinkTarget(None, seed)}
        passed = passed_over([seed], found, {name: told})
        assert {each.peer for each in passed} == {E1, E2}
        assert {each.reason for each in passed.values()} == {
            f"it is listed with another scheme than the peer {name} has in the config"
        }
    seed = LinkName("q", E1)
    some = {E1: PeerNodes(EAST, "east", (E1, S2), "allow")}
    found = wanted([seed], {}, some)
    assert list(found) == [seed]
    assert list(passed_over([seed], found, some)) == [LinkName("q", S2)]


def test_seeds_of_both_schemes_lead_to_each_node_once() -> None:
    """While peers move to TLS one by one, a node has one link: by the address in the config, otherwise with TLS."""
    seeds = [LinkName("q", E1), LinkName("q", S2)]
    told: dict[str, PeerNodes | None] = {s.peer: PeerNodes(EAST, "east", (E1, E2, E3), "allow") for s in seeds}
    assert {name.peer for name in wanted(seeds, {}, told)} == {E1, S2, S3}


def test_a_node_that_is_fetched_from_by_another_address_is_not_passed_over() -> None:
    """If there are as many links to a cluster as nodes in its list, none is missing, even if the addresses differ."""
    seed = LinkName("q", E1)
    told: dict[str, PeerNodes | None] = {E1: PeerNodes(EAST, "east", ("http://127.0.0.1:8098",)), E2: None}
    assert passed_over([seed], wanted([seed], {}, told), told) == {}
    told = {E1: PeerNodes(EAST, "east", ("http://127.0.0.1:8098", E2, E3)), E2: None}
    assert len(passed_over([seed], wanted([seed], {}, told), told)) == 1, "the list replaced the seed"
    told = {E1: PeerNodes(EAST, "east", ("http://127.0.0.1:1", "http://127.0.0.1:2")), E2: None}
    assert len(passed_over([seed], wanted([seed], {}, told), told)) == 2


def test_a_valid_mode_of_a_node_list_is_used() -> None:
    """`tls` is optional; an unknown mode counts as absent."""
    fields = {"cluster": "east", "cluster_uuid": EAST.hex(), "nodes": [{"http": E1}]}
    for said, understood in (("allow", "allow"), ("off", "off"), ("require", "require"), ("later", None), ([], None)):
        assert parse(json.dumps({**fields, "tls": said}).encode()).tls == understood
    assert parse(json.dumps(fields).encode()).tls is None
    assert dialled(PeerNodes(EAST, "east", (E1,), "off"), S1) == [E1]


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{}", b"\xff", b'{"cluster":"e","cluster_uuid":"00","nodes":[]}',
        b'{"cluster":7,"cluster_uuid":"65656565656565656565656565656565","nodes":[]}',
        b'{"cluster":"e","cluster_uuid":"65656565656565656565656565656565","nodes":[{"http":"ftp://x"}]}',
        b'{"cluster":"e","cluster_uuid":"65656565656565656565656565656565","nodes":[7]}',
        b'{"cluster":"e","cluster_uuid":"65656565656565656565656565656565","nodes":[{"http":7}]}',
        b'{"cluster":"e","cluster_uuid":"65656565656565656565656565656565","nodes":[{"http":null}]}',
        b'{"cluster":"e","cluster_uuid":"65656565656565656565656565656565","nodes":['
        + b",".join([b'{"http":"http://a:1"}'] * 257) + b"]}",
        b"[" * 100_000,
    ],
)  # fmt: skip
def test_a_malformed_node_list_is_reported(body: bytes) -> None:
    """A malformed answer of a peer raises a CodecError, and so does a list that is too long."""
    with pytest.raises(CodecError):
        parse(body)


def test_a_list_of_another_version_is_refused_by_name() -> None:
    """A list without a version counts as the first version, since earlier nodes sent none."""
    fields = {"cluster": "east", "cluster_uuid": EAST.hex(), "nodes": [{"http": E1}]}
    assert parse(json.dumps(fields).encode()) == parse(json.dumps({"v": 1, **fields}).encode())
    with pytest.raises(UnknownFetchVersion, match="version 2, this program speaks 1"):
        parse(json.dumps({**fields, "v": 2, "nodes": "in another form"}).encode())
