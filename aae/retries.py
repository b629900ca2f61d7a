"""A check that was due and could not look (a peer that is not ready, a tree that is being built) is tried again soon.

A few times, each after a longer pause, and only until the next slot of the peer's day: then that one is due anyhow. Who
asked for a check is told of its end and asks again. Pure; `aae.manager` keeps the one retry of each peer.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from aae.schedule import Kind

RETRY_MS: Final = 30_000
"""Pause before the first try again, doubled each time: nodes that start together are ready within some seconds."""

RETRIES_MAX: Final = 5
"""Tries again of one slot: a quarter of an hour in all. What is still not ready waits for the next slot, as it would
have without them. A guess."""


class Retry(NamedTuple):
    """The check of a slot that is to be tried again at `at_ms`, for the `tries`-th time, and why."""

    at_ms: int
    kind: Kind
    tries: int
    reason: str


def again(before: Retry | None, kind: Kind, reason: str, now_ms: int, next_ms: int | None) -> Retry | None:
    """When a check that ended now is tried again; `before`: that was a try already, `next_ms`: the next slot's moment.
    None: it is left to that."""
    tries = 1 if before is None else before.tries + 1
    at_ms = now_ms + (RETRY_MS << (tries - 1))
    if tries > RETRIES_MAX or (next_ms is not None and next_ms <= at_ms):
        return None
    return Retry(at_ms, kind, tries, reason)
