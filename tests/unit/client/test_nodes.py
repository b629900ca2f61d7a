"""The choice of a node for a request: the leader by the routes, nodes that answer, and no address that may belong to
another service."""

from __future__ import annotations

import json
from typing import Any

import pytest

from isthmus.client import routes
from isthmus.client.names import Key
from isthmus.client.nodes import AVOID_MAX_S, ROUTES_AFTER_COUNT, ROUTES_AGE_S, UNUSABLE_S, Nodes, Survey
from isthmus.client.steps import Endpoint, Response
from tests.support.scripted_cluster import SILENT, A, B, C, ScriptedCluster, answer, found, refusal

KEY = Key(b"default", b"users", b"bob")
"""Its partition is 7 of 12."""


def document(leader: str | None, *, version: int = 1, uuid: str = "u1", nodes: dict[str, str] | None = None) -> bytes:
    """Routes in which `leader` leads all partitions."""
    named = nodes or {"n1": "a:8098", "n2": "b:8098", "n3": "c:8098"}
    name = next((name for name, address in named.items() if address == leader), None)
    return json.dumps(
        {
            "v": 1,
            "cluster": "east",
            "cluster_uuid": uuid,
            "version": version,
            "hash": "xxh64-42",
            "nodes": named,
            "bucket_types": {"default": [name] * 12},
        }
    ).encode()


def routed(leader: str | None, **more: Any) -> Response:
    """The answer with such routes."""
    return answer(200, document(leader, **more), etag='"t"')


def nodes(*seeds: Endpoint, discover: bool = True) -> Nodes:
    """Nodes that have seen enough requests to read the routes."""
    made = Nodes(seeds or (A, B), routing=True, discover=discover)
    for _ in range(ROUTES_AFTER_COUNT):
        made.pick(KEY, (), 0.0)
    return made


def take(made: Nodes, response: Response, now_s: float = 0.0) -> Survey:
    """Takes a pending survey of the routes, and answers it."""
    survey = made.survey(KEY, now_s)
    assert survey is not None
    made.surveyed(survey, response, now_s)
    return survey


def test_requests_go_in_turn_without_routes() -> None:
    """Each of the given nodes gets about the same."""
    made = Nodes((A, B), routing=False, discover=True)
    picked = [made.pick(KEY, (), 0.0) for _ in range(10)]
    assert picked.count(A) == picked.count(B) == 5
    assert made.survey(KEY, 0.0) is None


def test_a_short_program_reads_no_routes() -> None:
    """The first requests go to any node."""
    made = Nodes((A, B), routing=True, discover=True)
    for _ in range(ROUTES_AFTER_COUNT):
        assert made.survey(KEY, 0.0) is None
        made.pick(KEY, (), 0.0)
    assert made.survey(KEY, 0.0) is not None


def test_a_given_node_that_leads_gets_the_requests() -> None:
    """It is known to be a node of the cluster, so no further request is needed."""
    made = nodes()
    take(made, routed("b:8098"))
    assert [made.pick(KEY, (), 0.0) for _ in range(4)] == [B] * 4
    assert made.pick(None, (), 0.0) in (A, B)
    assert made.survey(KEY, 0.0) is None


def test_an_address_of_the_routes_is_used_after_a_node_of_the_cluster_answered_there() -> None:
    """It is asked for its routes first; until then the given nodes get the requests."""
    made = nodes()
    take(made, routed("c:8098"))
    assert made.pick(KEY, (), 0.0) in (A, B)
    survey = take(made, routed("c:8098"))
    assert (survey.node, survey.probes) == (C, True)
    assert made.pick(KEY, (), 0.0) == C


@pytest.mark.parametrize(
    "reply", [routed("c:8098", uuid="other"), answer(200, b"<html>"), refusal(401, "unauthorized"), answer(404), SILENT]
)
def test_an_address_where_something_else_answers_is_not_used(reply: Response) -> None:
    """An address of another cluster, of another program, or without any answer is left alone for a minute, and tried
    again after it."""
    made = nodes()
    take(made, routed("c:8098"))
    take(made, reply)
    assert made.pick(KEY, (), 0.0) in (A, B)
    assert made.survey(KEY, 1.0) is None
    later = made.survey(KEY, UNUSABLE_S)
    assert later is not None
    assert later.node == C


def test_a_token_in_plain_text_goes_to_given_nodes_only() -> None:
    """Without `discover` no address of the routes is contacted, and leaders among the given nodes are used."""
    made = nodes(discover=False)
    take(made, routed("c:8098"))
    assert made.survey(KEY, 1.5) is None
    assert made.pick(KEY, (), 2.0) in (A, B)
    made.failed(A, 2.0)
    take(made, routed("b:8098"), 3.0)
    assert made.pick(KEY, (), 3.0) == B


def test_a_node_that_fails_is_avoided_longer_each_time() -> None:
    """The time is half a second, then doubled up to the limit; an answer resets it."""
    made = Nodes((A, B), routing=False, discover=True)
    made.failed(A, 0.0)
    assert [made.pick(KEY, (), 0.4) for _ in range(4)] == [B] * 4
    assert A in [made.pick(KEY, (), 0.5) for _ in range(2)]
    for _ in range(20):
        made.failed(A, 1.0)
    assert A not in [made.pick(KEY, (), 1.0 + AVOID_MAX_S - 0.1) for _ in range(4)]
    assert A in [made.pick(KEY, (), 1.0 + AVOID_MAX_S) for _ in range(2)]
    made.answered(A)
    assert A in [made.pick(KEY, (), 1.1) for _ in range(2)]


def test_with_no_good_node_the_one_that_failed_first_is_tried() -> None:
    """There is always a node to try; one that was tried for this request comes last."""
    made = Nodes((A, B), routing=False, discover=True)
    made.failed(A, 0.0)
    made.failed(B, 0.1)
    assert made.pick(KEY, (), 0.2) == A
    assert made.pick(KEY, {A}, 0.2) == B
    assert made.pick(KEY, {A, B}, 0.2) == A


def test_other_nodes_replace_the_given_ones() -> None:
    """A client that was given one node finds another one of the cluster when that one is gone."""
    made = nodes(A)
    take(made, routed(None))
    made.failed(A, 1.0)
    survey = made.survey(KEY, 1.1)
    assert survey is not None
    assert survey.node in (B, C)
    assert survey.probes
    made.surveyed(survey, routed(None), 1.1)
    assert made.pick(KEY, {A}, 1.1) == survey.node


def test_a_leader_that_failed_is_passed_over_and_routes_are_read_again() -> None:
    """Any other node forwards the request meanwhile."""
    made = nodes()
    take(made, routed("b:8098"))
    made.failed(B, 5.0)
    assert made.pick(KEY, {B}, 5.0) == A
    survey = made.survey(KEY, 5.0)
    assert survey is not None
    assert survey.node == A


def test_an_answer_that_names_the_leader_corrects_the_routes() -> None:
    """The correction takes effect at once, and the routes are read again, since other partitions may have moved,
    too."""
    made = nodes()
    take(made, routed("a:8098"))
    made.learn(KEY, "a:8098")
    assert made.survey(KEY, 5.0) is None
    made.learn(KEY, "b:8098")
    assert made.pick(KEY, (), 5.0) == B
    survey = made.survey(KEY, 5.0)
    assert survey is not None
    assert survey.etag == '"t"'


def test_routes_are_read_once_at_a_time_and_not_more_than_once_a_second() -> None:
    """Only one thread of a client reads outdated routes, and at most once a second."""
    made = nodes()
    survey = made.survey(KEY, 0.0)
    assert survey is not None
    assert made.survey(KEY, 0.0) is None
    made.surveyed(survey, routed("a:8098"), 0.0)
    made.refused()
    assert made.survey(KEY, 0.9) is None
    assert made.survey(KEY, 1.0) is not None
    made.survey_ended()
    assert made.survey(KEY, 2.0) is not None


def test_routes_of_a_minute_are_read_again() -> None:
    """A 304 keeps them."""
    made = nodes()
    take(made, routed("a:8098"))
    assert made.survey(KEY, ROUTES_AGE_S - 1) is None
    take(made, answer(304), ROUTES_AGE_S)
    assert made.pick(KEY, (), ROUTES_AGE_S) == A
    assert made.survey(KEY, ROUTES_AGE_S + 1) is None


@pytest.mark.parametrize(
    "reply",
    [
        answer(404, b"", x_isthmus_reason="unknown-path"),
        answer(200, document("a:8098").replace(b"xxh64-42", b"sha256")),
        answer(200, document("a:8098").replace(b'"v": 1', b'"v": 2')),
        answer(200, b"[]"),
    ],
)
def test_routes_of_another_version_are_not_used(reply: Response) -> None:
    """The client sends to any node, and does not ask again."""
    made = nodes()
    take(made, reply)
    assert {made.pick(KEY, (), 0.0) for _ in range(4)} == {A, B}
    assert made.survey(KEY, 1000.0) is None


def test_addresses_that_are_none_are_passed_over() -> None:
    """If the leader's address is unknown or unreadable, any node gets the request."""
    for address in ("", "host", "host:port", "[::1", "a:99999999"):
        made = nodes()
        take(made, routed(address, nodes={"n1": address}))
        assert made.pick(KEY, (), 0.0) in (A, B)
        assert made.survey(KEY, 0.0) is None


def test_what_is_kept_of_nodes_is_bounded_by_the_routes() -> None:
    """Addresses that are not in the routes any more are dropped."""
    made = nodes()
    for at in range(50):
        named = {"n1": "a:8098", "x": f"x{at}:1"}
        made.failed(A, at * 100.0)
        take(made, routed(f"x{at}:1", version=at + 1, nodes=named), at * 100.0 + 50)
        take(made, routed(f"x{at}:1", version=at + 1, nodes=named), at * 100.0 + 50)
    assert made._verified == {Endpoint("http", "x49", 1)}
    assert set(made._failures) <= {A, B}
    assert not made._unusable


def test_the_partition_of_a_key_is_that_of_the_documentation() -> None:
    """This holds for the example of docs/http.md, and against the product's own function for names of any bytes."""
    from isthmus.repl.model import keys

    assert routes.partition_index(b"users", b"bob", 12) == 7
    for bucket, key, count in ((b"\xff", b"\x00" * 300, 64), ("ü".encode(), b"a", 1), (b"b", b"c", 1 << 20)):
        assert routes.partition_index(bucket, key, count) == keys.partition_index(keys.key_hash(bucket, key), count)


def test_an_operation_reads_routes_and_goes_on_without_them() -> None:
    """A failure to read routes does not fail the operation; a probe costs one request."""
    cluster = ScriptedCluster(found(b"1"), routing=True)
    cluster.routes = SILENT
    key = cluster.operations.key(None, "users", "bob")
    for _ in range(ROUTES_AFTER_COUNT + 2):
        assert cluster.run(cluster.operations.get(key, None, None)).value == 1
    assert len(cluster.sent) > len(cluster.asked)
    cluster.routes = routed("c:8098")
    cluster.now_s += 120
    cluster.run(cluster.operations.get(key, None, None))
    cluster.run(cluster.operations.get(key, None, None))
    assert cluster.asked[-1].node == C
