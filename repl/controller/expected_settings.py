"""Expectations of operators: a change names the value that its operator saw, and is refused where it is another by now.

The check runs within the conditional write of the metastore's document (`Document.change`), so that of two operators
who change the same value at the same time, the later one is refused, whatever nodes they ask.
"""

from __future__ import annotations

from typing import Final, Protocol

from isthmus.config.text import SHOWN_MAX, shown
from isthmus.repl.model.errors import BadInput

REASON_MAX: Final = 200
"""Characters of the reason of a setting that are kept with it, so that the documents stay small; the audit log has
more."""


class ChangedMeanwhile(BadInput):
    """The setting is not the one that the operator saw; nothing was changed."""

    reason = "changed-meanwhile"


class KnownSetting(Protocol):
    """A setting with its author (`dynamic_options.Setting`, `bucket_properties.PropertySetting`)."""

    @property
    def value(self) -> int | str:
        """The value that is set; a flag is an int, too."""

    @property
    def by(self) -> str:
        """The operator who set it."""


def check_expected(name: str, expected: int | str | None, found: KnownSetting | None) -> None:
    """Raises ChangedMeanwhile unless `name` is set to `expected` (None: is not set)."""
    value = None if found is None else found.value
    if type(value) is type(expected) and value == expected:
        return
    now = "it is not set now" if found is None else f"it is set to {shown(found.value)} now, by {found.by[:SHOWN_MAX]}"
    before = "not set" if expected is None else f"set to {shown(expected)}"
    raise ChangedMeanwhile(f"{name} was changed meanwhile: it was {before}, {now}; nothing was done")
