"""Rows of a listing, each made alone: one that cannot be made is named with the reason, and the others are listed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from msgspec import UNSET, UnsetType

from isthmus.repl.unforeseen import unforeseen

T = TypeVar("T")
R = TypeVar("R")


class SeparateRows(NamedTuple):
    """Names of what could not be listed, with the reasons."""

    failed: dict[str, str]

    def make(self, name: str, made: Callable[[T], R], item: T) -> list[R]:
        """The row of one item, or nothing where making it raised what no rule foresaw."""
        try:
            return [made(item)]
        except Exception as error:  # noqa: BLE001 -- logged as unforeseen
            self.fail(name, error)
            return []

    def fail(self, name: str, error: Exception) -> None:
        """Note that the row of `name` could not be made."""
        self.failed[name] = str(unforeseen.exception("listing.row_bug", error, row=name))

    def shown(self) -> dict[str, str] | UnsetType:
        """`failed` as answers have it: left out where it is empty."""
        return self.failed or UNSET


def failed_in(failed: Mapping[str, str] | UnsetType) -> Mapping[str, str]:
    """`failed` of an answer."""
    return {} if isinstance(failed, UnsetType) else failed
