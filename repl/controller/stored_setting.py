"""A setting of an option or property as the metastore has it: value, author, time, reason.

An operator's change may name the value that the operator saw, and is refused where it is another by now. The check runs
within the conditional write of the metastore's document (`Document.change`), so that of two operators who change the
same value at the same time, the later one is refused, whatever nodes they ask.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from isthmus.config.text import SHOWN_MAX, shown
from isthmus.repl.model.errors import BadInput

WHO_MAX: Final = 200
"""Characters of the author of a setting that are kept."""

REASON_MAX: Final = 200
"""Characters of the reason of a setting that are kept with it, so that the documents stay small; the audit log has
more."""


class ChangedMeanwhile(BadInput):
    """The setting is not the one that the operator saw; nothing was changed."""

    reason = "changed-meanwhile"


class Setting(Struct, frozen=True, omit_defaults=True):
    """A value (that of a property may be a flag, which is an int, too), who set it, when (wall clock, for people), and
    why: REASON_MAX characters at most.

    A program that does not know reasons ignores them, and drops all when it changes the document."""

    value: int | str
    by: str
    at_ms: int
    reason: str = ""

    @classmethod
    def made(cls, value: int | str, by: str, at_ms: int, reason: str = "") -> Setting:
        """A setting, with as much of its author and reason as is kept."""
        return cls(value, by[:WHO_MAX], at_ms, reason[:REASON_MAX])


def check_expected(name: str, expected: int | str | None, found: Setting | None) -> None:
    """Raises ChangedMeanwhile unless `name` is set to `expected` (None: is not set)."""
    value = None if found is None else found.value
    if type(value) is type(expected) and value == expected:
        return
    now = "it is not set now" if found is None else f"it is set to {shown(found.value)} now, by {found.by[:SHOWN_MAX]}"
    before = "not set" if expected is None else f"set to {shown(expected)}"
    raise ChangedMeanwhile(f"{name} was changed meanwhile: it was {before}, {now}; nothing was done")
