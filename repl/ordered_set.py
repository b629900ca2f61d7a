"""A set that is iterated in the order of insertion.

Objects have no order of their own, and Python iterates over a set of them by their addresses. Where each of several
connections or tasks is sent something or ended, the order shows outside: with this one it is the same in each run.
"""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


class OrderedSet(dict[T, None]):
    """The members are the keys."""

    def add(self, member: T) -> None:
        """Add a member; one that is there keeps its place."""
        self[member] = None

    def discard(self, member: T) -> None:
        """Remove a member, if it is there."""
        self.pop(member, None)
