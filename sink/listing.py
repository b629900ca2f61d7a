"""What the sink shows of itself: one row a link for people, samples for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from repl.model.requests import PushOutcome
from repl.telemetry import Sample
from sink.roster import Roster
from sink.suspensions import Suspension
from sink.worker import Link

HELP: Final[Mapping[str, str]] = {
    "isthmus_sink_changes_total": "Changes fetched and pushed into this cluster, by outcome.",
    "isthmus_sink_fetches_total": "Fetches that the source answered.",
    "isthmus_sink_batches_total": "Batches pushed.",
    "isthmus_sink_errors_total": "Cycles that failed; nothing of them was acknowledged.",
    "isthmus_sink_lag_seconds": "Lag of the last minute by quantile; absent when nothing was stored in it.",
    "isthmus_sink_delay_seconds": "Delay of a link before its next fetch.",
    "isthmus_sink_suspended": "1 while an operator has suspended the link.",
}
"""Name -> what it counts."""


def row(link: Link, roster: Roster, suspensions: Sequence[Suspension], now_ms: int) -> dict[str, Any]:
    """One link; None where a number is unknown."""
    name = link.name
    suspended = next((s for s in suspensions if s.fits(name)), None)
    errors = roster.errors(name)
    if suspended is not None:
        state, reason = "suspended", f"by {suspended.by}" + (f": {suspended.reason}" if suspended.reason else "")
    elif errors:
        state, reason = "failing", link.last_error or f"{errors} errors in a row"
    elif not link.fetches:
        state, reason = "starting", "no answer yet"
    elif link.source_state != "serving":
        state, reason = "waiting", f"the source is {link.source_state}"
    else:
        state, reason = "running", ""
    with link.lock:
        recent = link.lag.recent(now_ms)
        counts = link.outcomes.counts
        return {
            "queue": name.queue,
            "peer": name.peer,
            "source_cluster": link.source_cluster or None,
            "state": state,
            "reason": reason,
            "suspended": None
            if suspended is None
            else {"by": suspended.by, "at_ms": suspended.at_ms, "reason": suspended.reason},
            "delay_ms": roster.delay_ms(name),
            "running": roster.running(name),
            **{outcome.value: counts[outcome] for outcome in PushOutcome},
            "fetches": link.fetches,
            "batches": link.batches,
            "errors": link.errors,
            "lag_ms_p50": link.lag.all.quantile_ms(0.5),
            "lag_ms_p99": link.lag.all.quantile_ms(0.99),
            "recent_lag_ms_p50": recent.quantile_ms(0.5),
            "recent_lag_ms_p99": recent.quantile_ms(0.99),
            "last_batch_ms": link.last_batch_ms,
            "last_error": link.last_error or None,
            "last_error_ms": link.last_error_ms,
        }


def samples(link: Link, roster: Roster, suspensions: Sequence[Suspension], now_ms: int) -> list[Sample]:
    """One link's samples."""
    name = link.name
    labels = {"queue": name.queue, "peer": name.peer}
    with link.lock:
        recent = link.lag.recent(now_ms)
        result: list[Sample] = [
            ("isthmus_sink_changes_total", {**labels, "outcome": o.value}, link.outcomes.counts[o]) for o in PushOutcome
        ]
        result += [
            ("isthmus_sink_fetches_total", labels, link.fetches),
            ("isthmus_sink_batches_total", labels, link.batches),
            ("isthmus_sink_errors_total", labels, link.errors),
            ("isthmus_sink_delay_seconds", labels, roster.delay_ms(name) / 1000),
            ("isthmus_sink_suspended", labels, any(s.fits(name) for s in suspensions)),
        ]
    for quantile in (0.5, 0.99):
        lag_ms = recent.quantile_ms(quantile)
        if lag_ms is not None:
            result.append(("isthmus_sink_lag_seconds", {**labels, "quantile": str(quantile)}, lag_ms / 1000))
    return result
