"""Events of a node's log that operators see."""

from __future__ import annotations

from isthmus.node.observability.events import EVENTS_MAX, KEPT_MAX, RecentEvents


def kept(*events: tuple[str, dict[str, object]], limit: int = EVENTS_MAX) -> RecentEvents:
    """The events of a log."""
    found = RecentEvents(limit)
    for name, fields in events:
        event = {"event": name, "node": "n1", "level": "info", **fields}
        assert found.keep(None, "info", event) is event
    return found


def test_events_have_a_kind_and_the_fields_of_the_log() -> None:
    """Fields of every line are not repeated; a long text is cut."""
    events = kept(("isr.shrunk", {"partition": 3, "removed": ["n2"]}), ("storage.full", {"why": "x" * 10_000}))
    first, second = events.all()
    assert (first.kind, first.event, first.text) == ("replica", "isr.shrunk", "partition 3, removed ['n2']")
    assert (first.level, first.subject) == ("info", "partition 3")
    assert (second.kind, len(second.text)) == ("disk", KEPT_MAX)
    assert first.number < second.number


def test_acts_noise_and_requests_are_left_out() -> None:
    """Acts belong to the audit log; debug lines, events of single requests and the steps of an election are not
    events."""
    events = kept(("placement.ordered", {"by": "ann"}), ("trees.built", {}), ("http.request_dropped", {}), ("x", {}))
    events.keep(None, "debug", {"event": "isr.ready"})
    for role in ("candidate", "follower", "leader"):
        events.keep(None, "info", {"event": "isr.role", "role": role, "reason": ""})
    assert [each.text for each in events.all()] == ["role leader"]
    events = kept()
    assert events.all() == []


def test_the_newest_are_kept_in_their_order() -> None:
    """At most the limit is kept; the oldest go first."""
    events = kept(*((f"node.event_{number}", {}) for number in range(9)), limit=4)
    assert [each.event for each in events.all()] == [f"node.event_{number}" for number in (5, 6, 7, 8)]
    assert [each.event for each in events.after(6, 2)] == ["node.event_6", "node.event_7"]
