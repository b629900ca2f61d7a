"""The noun `option`: the dynamic options of the cluster. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from isthmus.node.nouns.description import Act, DescribedNoun, Parameter, TableColumn, means
from isthmus.node.nouns.requests import AuditedRequest, DryRun, right


def _scope(row: Mapping[str, Any]) -> str:
    """For whom an option is set."""
    bucket_type = row.get("bucket_type")
    return "cluster" if bucket_type is None else f"bucket type {bucket_type}"


class ValueAtNode(msgspec.Struct, frozen=True):
    """An option in force at one node."""

    effective: int | str
    origin: str


class OptionRow(msgspec.Struct, frozen=True):
    """A dynamic option, of the cluster or of one bucket type."""

    option: Annotated[str, means("Its name.", TableColumn())]
    bucket_type: Annotated[str | None, means("Null: the cluster's.", TableColumn("for", leave=1, shown=_scope))]
    default: Annotated[str, means("The default, as text.", TableColumn(leave=3))]
    set: Annotated[int | str | None, means("What somebody set; null: nothing.", TableColumn(nothing=True))]
    effective: Annotated[int | str, means("What is in force.", TableColumn())]
    origin: Annotated[
        str,
        means("Where that is from: `bucket type`, `cluster`, `file` or `default`.", TableColumn("from", leave=2)),
    ]
    by: Annotated[str | None, means("Who set it; null: nobody.", TableColumn(leave=4, nothing=True))]
    at_ms: Annotated[int | None, means("When it was set.", TableColumn("when", leave=5, moment=True, nothing=True))]
    reason: Annotated[str | None, means("Why it was set.")]
    waiting: Annotated[list[int], means("The partitions whose records do not have it yet.")]
    scope: Annotated[str, means("For whom it may be set.")]
    unit: Annotated[str, means("Of the value; empty: none.")]
    range: Annotated[str, means("The values that are allowed, as text.")]
    choices: Annotated[list[str], means("The values that are allowed, of an option that is no number.")]
    meaning: Annotated[str, means("One sentence or more.")]
    differs: Annotated[dict[str, ValueAtNode], means("Node -> what is in force there, where that differs.")]


class OptionList(msgspec.Struct, frozen=True):
    """Options, and what is known of the nodes that read them."""

    options: list[OptionRow]
    behind: Annotated[list[str], means("Nodes that have not read the newest settings.")]
    unknown: Annotated[dict[str, str], means("Node -> why it is unknown what is in force there.")]


class OptionChange(msgspec.Struct, frozen=True):
    """What an act did, or would do."""

    outcome: Annotated[str, means("`set`, `unset`, `was not set`, or what it would be.")]
    before: Annotated[int | str | None, means("What was set before; null: nothing.")]
    before_by: Annotated[str | None, means("Who had set that.")]
    options: list[OptionRow]
    behind: Annotated[list[str], means("Nodes that have not read the change yet.")]
    unknown: Annotated[dict[str, str], means("Node -> why it is unknown what is in force there.")]
    warnings: Annotated[list[str], means("What the change may do that nobody wants.")]


class ChangeOptionRequest(AuditedRequest, frozen=True, kw_only=True):
    """Set or unset an option, of the cluster or of one bucket type."""

    value: Annotated[
        Any, msgspec.Meta(description="The option's value, in the form that its table shows; only to set it.")
    ] = None
    bucket_type: str | None = None
    expected: Annotated[
        int | str | UnsetType | None,
        msgspec.Meta(description="The value that is set now, as `set` of the listing has it; null: none. Any other is "
                     "refused with 409 `changed-meanwhile`. Left out: whatever is set."),
        right("what the option is set to now: a number, a text, or null"),
    ] = UNSET  # fmt: skip
    dry_run: DryRun = False


SET: Final = Act("set", ChangeOptionRequest, OptionChange, "set option {option}")
UNSET_IT: Final = Act("unset", ChangeOptionRequest, OptionChange, "unset option {option}")

_OF_TYPE: Final = {"bucket_type": Parameter("The values of this bucket type.")}

OPTION: Final = DescribedNoun(
    "option",
    path="/admin/options",
    key="option",
    row=OptionRow,
    listing=OptionList,
    one=OptionList,
    acts=(SET, UNSET_IT),
    parameters=_OF_TYPE,
    one_parameters=_OF_TYPE,
)
