"""Which changes a queue offers, as values (pure).

This room parses a filter's text once and answers for one bucket at a time; it knows nothing of origins (those are
rules of the window) nor of priorities. The story goes on in `queues.window`.
"""

from __future__ import annotations

from dataclasses import dataclass

from repl.model.errors import BadConfig


@dataclass(frozen=True, slots=True)
class AnyChange:
    """`any`: every change of every bucket type and bucket."""

    def __str__(self) -> str:
        return "any"


Filter = AnyChange
"""The closed set of filters; one member today."""


def parse_filter(text: str) -> Filter:
    """The filter that `text` names. Raises BadConfig with the words that would be right."""
    if text == "any":
        return AnyChange()
    raise BadConfig(f"queue filter {text!r} is not known; this version knows: any")
