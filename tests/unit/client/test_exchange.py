"""A request is repeated at other nodes until it has an answer or its time is over; an error states the outcome of a
write."""

from __future__ import annotations

import random

import pytest

from isthmus.client.errors import BadRequest, Conflict, OutcomeUnknown, Refused, Retryable, ServerFault
from isthmus.client.exchange import PAUSE_MAX_S, pause_s
from isthmus.client.names import Key
from isthmus.client.steps import NoAnswer, Request, Send, Sleep, Step
from tests.support.scripted_cluster import (
    NOT_FOUND,
    SILENT,
    UNREACHABLE,
    A,
    ScriptedCluster,
    answer,
    refusal,
    written,
)

KEY = Key(b"default", b"b", b"k")
GET = Request(b"GET", KEY.path)
PUT = Request(b"PUT", KEY.path, ((b"X-Isthmus-Request-Id", b"id"),), b"v")


def read(cluster: ScriptedCluster) -> int:
    """The status of the answer to a read."""
    return cluster.run(cluster.exchange.read(GET, KEY, cluster.exchange.deadline_s(None))).status


def write(cluster: ScriptedCluster) -> int:
    """The status of the answer to a write."""
    return cluster.run(cluster.exchange.write(PUT, KEY, cluster.exchange.deadline_s(None), "id")).status


@pytest.mark.parametrize("failure", [UNREACHABLE, SILENT])
def test_a_node_that_does_not_answer_is_replaced_at_once(failure: NoAnswer) -> None:
    """The next attempt goes to the other node, without a pause; the next request avoids the first one."""
    cluster = ScriptedCluster(failure, answer(200))
    assert read(cluster) == 200
    first, second = cluster.asked
    assert first.node != second.node
    assert cluster.slept == []
    assert read(cluster) == 200
    assert cluster.asked[-1].node == second.node


def test_pauses_grow_and_end_with_the_time_of_the_call() -> None:
    """When no node answers, pauses double up to their limit, and the call ends before its time is over."""
    cluster = ScriptedCluster(UNREACHABLE, timeout_s=6.0, attempts=100)
    with pytest.raises(Retryable) as caught:
        read(cluster)
    assert caught.value.reason == "no-answer"
    assert cluster.now_s < 1006.0
    assert len(cluster.slept) >= 5
    assert all(later > earlier / 2 for earlier, later in zip(cluster.slept, cluster.slept[1:], strict=False))
    assert max(cluster.slept) <= PAUSE_MAX_S


def test_attempts_are_bounded() -> None:
    """No more requests than `attempts`, however much time there is."""
    cluster = ScriptedCluster(UNREACHABLE, timeout_s=1000.0, attempts=5)
    with pytest.raises(Retryable):
        read(cluster)
    assert len(cluster.asked) == 5


def test_a_silent_node_leaves_time_for_others() -> None:
    """One attempt lasts a third of the call's time; the last one no longer than what is left."""
    cluster = ScriptedCluster(SILENT, timeout_s=6.0)
    cluster.lasts_s = 60.0
    with pytest.raises(Retryable):
        read(cluster)
    assert [send.timeout_s for send in cluster.asked[:2]] == [2.0, 2.0]
    assert all(send.timeout_s <= 2.0 for send in cluster.asked)
    assert cluster.now_s <= 1006.0


@pytest.mark.parametrize(("broken_count", "message"), [(3, "the connection broke"), (1, "nothing in time")])
def test_an_attempt_that_the_call_cuts_short_hides_no_earlier_failure(broken_count: int, message: str) -> None:
    """A read whose last attempt had less than its time ends with the failure before it, which is silence only where an
    attempt with its whole time met it."""
    broken, late = NoAnswer("the connection broke", sent=True), NoAnswer("nothing in time", sent=True, silent=True)
    cluster = ScriptedCluster(*[broken] * broken_count, late, timeout_s=6.0)
    cluster.lasts_s = 1.9
    with pytest.raises(Retryable, match=message):
        read(cluster)
    assert [send.timeout_s for send in cluster.asked[:3]] == [2.0, 2.0, 2.0]
    assert cluster.asked[-1].timeout_s < 2.0


@pytest.mark.parametrize("uncertain", [SILENT, refusal(504, "outcome-unknown"), refusal(500, "internal")])
def test_a_write_is_repeated_with_its_id(uncertain: NoAnswer) -> None:
    """A write whose answer is lost is sent again, unchanged, so that it takes effect once."""
    cluster = ScriptedCluster(uncertain, written(x_isthmus_repeated="true"))
    assert write(cluster) == 204
    assert [send.request for send in cluster.asked] == [PUT, PUT]


def test_a_write_without_any_answer_is_of_unknown_outcome() -> None:
    """The error has the request id for a repetition, and what happened."""
    cluster = ScriptedCluster(SILENT, UNREACHABLE, attempts=4)
    with pytest.raises(OutcomeUnknown) as caught:
        write(cluster)
    assert caught.value.request_id == "id"
    assert "silent" in caught.value.message
    assert "refused" in caught.value.message


@pytest.mark.parametrize("failure", [UNREACHABLE, refusal(503, "not-enough-replicas")])
def test_a_write_that_never_arrived_is_retryable(failure: NoAnswer) -> None:
    """Refused connections and 503 are definite: nothing took effect."""
    with pytest.raises(Retryable):
        write(ScriptedCluster(failure, attempts=3))


@pytest.mark.parametrize("step", [Send, Sleep])
@pytest.mark.parametrize("routing", [False, True])
def test_closing_after_a_lost_answer_leaves_the_outcome_unknown(routing: bool, step: type[Step]) -> None:
    """The first attempt may have taken effect, and the caller needs the id; without such an attempt, or for a read, the
    call was of a closed client."""

    def closing(first: NoAnswer) -> ScriptedCluster:
        cluster = ScriptedCluster(first, seeds=(A,), routing=routing)
        cluster.closes_in = step
        return cluster

    cluster = closing(SILENT)
    with pytest.raises(OutcomeUnknown, match=r"silent.*closed") as caught:
        write(cluster)
    assert caught.value.request_id == "id"
    assert isinstance(caught.value.__cause__, BadRequest)
    assert len(cluster.asked) == 1
    for call, first in ((read, SILENT), (write, UNREACHABLE)):
        with pytest.raises(BadRequest, match="closed"):
            call(closing(first))


def test_a_request_that_is_too_large_has_not_taken_effect_before_either() -> None:
    """A node whose answer was lost, as by a connection that broke amid a large body, and which then finds the request
    too large, had refused it; another node's limits may differ."""
    with pytest.raises(BadRequest, match="too-large"):
        write(ScriptedCluster(SILENT, refusal(413, "too-large"), seeds=(A,)))
    with pytest.raises(OutcomeUnknown):
        write(ScriptedCluster(SILENT, refusal(413, "too-large")))


def test_a_refusal_after_a_lost_answer_leaves_the_outcome_unknown() -> None:
    """The refusal is of the repetition: the first attempt may have taken effect."""
    cluster = ScriptedCluster(SILENT, refusal(403, "forbidden"))
    with pytest.raises(OutcomeUnknown) as caught:
        write(cluster)
    assert isinstance(caught.value.__cause__, Refused)


def test_a_condition_that_fails_after_a_lost_answer_is_a_conflict() -> None:
    """A node knows the ids of earlier writes before it judges conditions: the first attempt did not take effect."""
    with pytest.raises(Conflict):
        write(ScriptedCluster(SILENT, refusal(412, "precondition-failed")))


@pytest.mark.parametrize(
    ("response", "error"),
    [
        (refusal(400, "bad-vclock"), BadRequest),
        (refusal(401, "unauthorized"), Refused),
        (refusal(403, "forbidden"), Refused),
        (refusal(404, "unknown-bucket-type"), BadRequest),
        (refusal(409, "modified"), Conflict),
        (refusal(409, "owned-by-other"), BadRequest),
        (refusal(412, "precondition-failed"), Conflict),
        (refusal(413, "too-large"), BadRequest),
        (refusal(422, "too-many-siblings"), BadRequest),
        (refusal(501, "not-implemented"), BadRequest),
        (answer(200 + 2), None),
        (answer(404, b"<html>"), ServerFault),
        (answer(302, b""), ServerFault),
    ],
)
def test_what_no_repetition_changes_is_raised_at_once(response: NoAnswer, error: type[Exception] | None) -> None:
    """The error is classified by what the caller must do, with the code and the sentence of the node, after one
    request."""
    cluster = ScriptedCluster(response)
    if error is None:
        assert write(cluster) == 202
    else:
        with pytest.raises(error) as caught:
            write(cluster)
        assert type(caught.value) is error
    assert len(cluster.asked) == 1


def test_a_key_that_does_not_exist_is_an_answer() -> None:
    """404 not-found is returned to the operation, which interprets it."""
    assert read(ScriptedCluster(NOT_FOUND)) == 404


@pytest.mark.parametrize("later", [refusal(503, "overloaded"), refusal(408, "slow-request"), refusal(400, "cut-short")])
def test_what_is_refused_for_now_is_sent_again(later: NoAnswer) -> None:
    """The repetition follows after a pause."""
    cluster = ScriptedCluster(later, answer(200))
    assert read(cluster) == 200
    assert len(cluster.slept) == 1


def test_retry_after_is_followed() -> None:
    """A pause is as long as the node asks for, and a little longer; an unreadable or huge one is bounded."""
    cluster = ScriptedCluster(refusal(503, "overloaded", retry_after="2"), answer(200))
    read(cluster)
    assert 2.0 <= cluster.slept[0] <= 2.5
    for value in ("soon", "-1", ""):
        cluster = ScriptedCluster(refusal(503, "overloaded", retry_after=value), answer(200))
        read(cluster)
        assert cluster.slept[0] < 1.0
    cluster = ScriptedCluster(refusal(503, "overloaded", retry_after="9999"), answer(200))
    assert read(cluster) == 200
    assert cluster.slept[0] <= 6.25


def test_a_refusal_that_names_the_leader_is_followed_at_once() -> None:
    """503 not-leader with X-Isthmus-Leader needs no pause."""
    cluster = ScriptedCluster(refusal(503, "not-leader", retry_after="1", x_isthmus_leader="b:8098"), answer(200))
    assert read(cluster) == 200
    assert cluster.slept == []


def test_tls_that_fails_everywhere_is_refused() -> None:
    """Each node is tried once, since another one may have a good certificate; no pause helps."""
    cluster = ScriptedCluster(NoAnswer("TLS failed: self-signed", sent=False, tls=True))
    with pytest.raises(Refused) as caught:
        read(cluster)
    assert caught.value.reason == "tls"
    assert len(cluster.asked) == 2
    assert cluster.slept == []


def test_a_client_without_a_free_connection_blames_no_node() -> None:
    """No node is marked as failed, and the error says which option to raise."""
    busy = NoAnswer("all connections of the client were in use (connections=)", sent=False, busy=True)
    cluster = ScriptedCluster(busy, attempts=3)
    with pytest.raises(Retryable, match="connections="):
        read(cluster)
    assert {send.node.host for send in cluster.asked} == {"a", "b"}
    assert len(cluster.slept) == 2


def test_an_unreadable_answer_is_a_fault_of_the_server() -> None:
    """A read is repeated and then a ServerFault; a write may have taken effect."""
    broken = NoAnswer("what arrived is not HTTP", sent=True, unreadable=True)
    with pytest.raises(ServerFault):
        read(ScriptedCluster(broken, attempts=3))
    with pytest.raises(OutcomeUnknown):
        write(ScriptedCluster(broken, attempts=3))


def test_a_call_without_time_sends_nothing() -> None:
    """Its deadline was over before the first attempt."""
    cluster = ScriptedCluster(answer(200))
    with pytest.raises(Retryable):
        cluster.run(cluster.exchange.read(GET, KEY, cluster.now_s))
    assert not cluster.sent


def test_pauses_spread() -> None:
    """Between half and all of the doubled time, so that clients do not return together."""
    chance = random.Random(1)
    pauses = [pause_s(3, chance) for _ in range(200)]
    assert 0.2 <= min(pauses) < 0.22
    assert 0.38 < max(pauses) <= 0.4
    assert pause_s(10_000, chance) <= PAUSE_MAX_S
