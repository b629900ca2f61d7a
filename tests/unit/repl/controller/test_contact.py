"""A controller without contact leaves the claim to other nodes (R-CONTACT)."""

from __future__ import annotations

from isthmus.repl.controller.contact import ALONE_MS, CLAIM_PAUSE_MS, Contact

NODES = ("n1", "n2", "n3")


def test_a_node_that_another_one_dialled_or_without_others_is_in_contact() -> None:
    """A connection that any other registered node dialled is enough, and a cluster of one node needs none."""
    contact = Contact("n1")
    contact.learn(["n1"], [], 0)
    assert not contact.alone(10 * ALONE_MS)
    assert contact.may_claim(10 * ALONE_MS)
    contact.learn(NODES, ["n2"], 10 * ALONE_MS)
    assert not contact.alone(100 * ALONE_MS)
    assert contact.may_claim(100 * ALONE_MS)


def test_a_connection_with_a_node_that_is_not_registered_is_no_contact() -> None:
    """A removed node's connection does not count, nor one with itself; one that is registered later does."""
    contact = Contact("n1")
    contact.learn(NODES, ["n1", "n9"], 0)
    assert contact.alone(ALONE_MS)
    contact.learn([*NODES, "n9"], ["n9"], ALONE_MS)
    assert not contact.alone(ALONE_MS)


def test_contact_is_lost_after_a_while_without_any_connection() -> None:
    """Not before ALONE_MS, counted from the last connection's end; a connection ends it at once."""
    contact = Contact("n1")
    contact.learn(NODES, ["n2"], 0)
    contact.learn(NODES, [], 1_000)
    contact.learn(NODES, [], 2_000)
    assert not contact.alone(1_000 + ALONE_MS - 1)
    assert contact.may_claim(1_000 + ALONE_MS - 1)
    assert contact.alone(1_000 + ALONE_MS)
    contact.learn(NODES, ["n3"], 2_000 + ALONE_MS)
    assert not contact.alone(2_000 + ALONE_MS)
    assert contact.may_claim(2_000 + ALONE_MS)


def test_a_free_claim_is_left_to_others_for_a_while_and_then_kept_for_a_while() -> None:
    """If no node reaches any other, the claim changes hands at a bounded rate, and is held most of the time."""
    contact = Contact("n1")
    contact.learn(NODES, [], 0)
    assert not contact.may_claim(ALONE_MS)
    contact.gave_up(ALONE_MS + 100)
    assert not contact.may_claim(ALONE_MS + 100 + CLAIM_PAUSE_MS - 1)
    took_ms = ALONE_MS + 100 + CLAIM_PAUSE_MS
    assert contact.may_claim(took_ms)
    contact.took(took_ms)
    assert not contact.alone(took_ms + ALONE_MS - 1)
    assert contact.may_claim(took_ms + ALONE_MS - 1)
    assert contact.alone(took_ms + ALONE_MS)
