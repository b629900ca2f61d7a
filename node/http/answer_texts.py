"""Values of admin answers as text, and sentences that readers recognise.

Imports nothing but the standard library: a command starts without the server's modules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

UNKNOWN: Final = "unknown"
NOTHING: Final = "-"

Row = Mapping[str, Any]
"""A row of a listing: an object of an answer's JSON."""

NAMED_MAX: Final = 8
"""Partitions that a line names."""

_LINKS_FAIL: Final = re.compile(r"\d+ of \d+ links? fails?: ")
"""How `sink.service.Sink.failing` begins."""

_AGE: Final = re.compile(r", as it answered \d+ s ago")


def no_proof(row: Row) -> str:
    """The word for a row of `/admin/lag` without a proof: never, or unknown while nodes do not answer."""
    return UNKNOWN if row.get("proofs_unknown_at") else "never"


def silent_sentence(node: str) -> str:
    """The warning about a node whose session is alive and that did not answer."""
    return f"node {node} lives by its session and did not answer this node: it may be frozen, overloaded or cut off"


def links_sentence(node: str, why: str) -> str:
    """The warning of `node` about its fetches from other clusters."""
    return f"node {node}, fetching from other clusters: {why}"


def is_of_failing_links(sentence: str, node: str) -> bool:
    """Whether a warning is that of `node` about its failing links, in its form or that of an earlier version."""
    for before in (links_sentence(node, ""), f"to other clusters, at node {node}: "):
        if sentence.startswith(before) and _LINKS_FAIL.match(sentence, len(before)) is not None:
            return True
    return False


def without_age(reason: str) -> str:
    """The reason of a link or a queue without the ages of last answers (`sink.status`, `queues.queue_server`), which
    differ between links, and between nodes, of one cause."""
    return _AGE.sub("", reason)


def objects_in(answer: Row, key: str) -> list[dict[str, Any]]:
    """The objects of the list under `key`; none where a node, of another version maybe, does not have it."""
    found = answer.get(key)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def object_in(answer: Row, key: str) -> dict[str, Any]:
    """The object under `key`; an empty one where there is none."""
    found = answer.get(key)
    return found if isinstance(found, dict) else {}


def cell(value: Any) -> str:
    """A value as text: None is "unknown", an empty text or list "-", true and false are yes and no."""
    match value:
        case None:
            return UNKNOWN
        case bool():
            return "yes" if value else "no"
        case list() | tuple():
            return ", ".join(cell(item) for item in value) or NOTHING
        case float():
            return f"{value:.1f}"
        case _:
            return printable(str(value)) or NOTHING


def milliseconds(value: Any) -> str:
    """A duration as text: "1.8 ms", "12.3 s", "5.0 min"; anything but a number is "unknown"."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return UNKNOWN
    for factor, unit, below in ((1, "ms", 1_000), (1_000, "s", 300), (60_000, "min", 120)):
        if round(value / factor, 1) < below:  # as it is shown: 999.96 ms are not "1000.0 ms"
            return f"{value / factor:.1f} {unit}"
    return f"{value / 3_600_000:.1f} h"


def percent(share: float) -> str:
    """A share from 0 to 1 as whole percent. Only 1 is "100 %" and only 0 is "0 %": what is nearly so is "> 99 %" or
    "< 1 %"."""
    whole = round(100 * share)
    if whole == 100 and share < 1:
        return "> 99 %"
    return "< 1 %" if whole == 0 and share > 0 else f"{whole} %"


def named(values: Sequence[Any]) -> str:
    """The first NAMED_MAX of some partitions, in one line."""
    return ", ".join(map(str, values[:NAMED_MAX])) + (", ..." if len(values) > NAMED_MAX else "")


def printable(text: str) -> str:
    """The text with every character escaped that could control a terminal."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
