"""The bodies of requests to the admin API that all acts share. Pure."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

WORDS_MAX: Final = 1_000
"""Characters of `by` and of `reason`, which stay in records, listings and logs; more than a sentence needs."""

TIME_MAX_MS: Final = 1 << 50
"""Largest wall-clock time: beyond the year 30,000 the unit must be wrong."""

RATE_MAX: Final = 1 << 40
"""Largest rate; above any disk's."""

By = Annotated[
    str,
    msgspec.Meta(
        max_length=WORDS_MAX, description="Name of the person who makes the change; null: the node's own user."
    ),
]
Reason = Annotated[str, msgspec.Meta(max_length=WORDS_MAX, description="Why; shown in listings and logs.")]
Name = Annotated[str, msgspec.Meta(min_length=1)]
Rate = Annotated[int, msgspec.Meta(ge=0, le=RATE_MAX, description="0: no limit.")]
OneNode = Annotated[str, msgspec.Meta(description="Only on this node; null: on all.")]
DryRun = Annotated[bool, msgspec.Meta(description="Only show the effect; nothing is changed.")]


class JsonRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all request bodies."""

    def only_reads(self) -> bool:
        """Whether this request changes nothing: a dry run. It is not recorded in the audit log."""
        return getattr(self, "dry_run", False) is True


class AuditedRequest(JsonRequest, frozen=True, kw_only=True):
    """A change that is recorded with its author and reason."""

    by: By | None = None
    reason: Reason | None = None


def right(words: str) -> msgspec.Meta:
    """Metadata of a field: its error message says that these words would be right."""
    return msgspec.Meta(extra={"right": words})


Encoding = Annotated[Literal["percent"], right('"percent" (names are percent-encoded bytes)')]
