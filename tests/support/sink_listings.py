"""The sink of a test as operators see it in JSON."""

from __future__ import annotations

from typing import Any

import msgspec

from isthmus.node.services.sink_listing import letter_row, overview_of
from isthmus.sink.dead_letters import DeadLetter
from isthmus.sink.service import Sink


def overview(sink: Sink) -> dict[str, Any]:
    """The sink as GET /admin/sink shows it."""
    shown: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(overview_of(sink, "w1")))
    return shown


def links(sink: Sink) -> list[dict[str, Any]]:
    """The rows of its links, and of the nodes that it passes over."""
    rows: list[dict[str, Any]] = overview(sink)["sinks"]
    return rows


def letters_shown(letters: list[DeadLetter]) -> list[dict[str, Any]]:
    """The rows of dead letters."""
    rows: list[dict[str, Any]] = msgspec.json.decode(msgspec.json.encode([letter_row(one) for one in letters]))
    return rows
