"""The noun `dead-letters`: changes that a node's sink refused for good. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

import msgspec

from isthmus.node.nouns.description import Act, DescribedNoun, Parameter, TableColumn, means
from isthmus.node.nouns.requests import AuditedRequest, right

IDS_MAX: Final = 10_000
"""Most dead letters in one request."""

LETTER_ID_MAX: Final = (1 << 63) - 1
"""The largest number that SQLite gives."""


def _part_of_key(number: int) -> Callable[[Mapping[str, Any]], Any]:
    """The bucket type, the bucket, or the key of a row."""

    def shown(row: Mapping[str, Any]) -> Any:
        key = row.get("key")
        return key[number] if isinstance(key, list | tuple) and len(key) == 3 else None

    return shown


class DeadLetterRow(msgspec.Struct, frozen=True, kw_only=True):
    """A change that was refused for good."""

    id: Annotated[int, means("Its number, at the node that keeps it.", TableColumn())]
    at_ms: Annotated[int, means("When it was refused.", TableColumn("at", moment=True))]
    queue: Annotated[str, means("The queue that it came from.", TableColumn())]
    peer: Annotated[str, means("The node that it was fetched from.")]
    source_cluster: Annotated[str, means("The cluster that it came from.", TableColumn("source"))]
    key: Annotated[
        tuple[str, str, str],
        means(
            "Bucket type, bucket and key; bytes that are no text are escaped, so that two may look alike.",
            TableColumn("type", shown=_part_of_key(0)),
            TableColumn("bucket", shown=_part_of_key(1)),
            TableColumn("key", shown=_part_of_key(2)),
        ),
    ]
    key_encoded: Annotated[tuple[str, str, str], means("The same, percent-encoded.")]
    size_bytes: Annotated[int, means("Of its object.", TableColumn("bytes"))]
    object_kept: Annotated[bool, means("False: it is asked for at the source again.", TableColumn("kept"))]
    tries: Annotated[int, means("How often it was pushed.", TableColumn())]
    reason: Annotated[str, means("The code of the refusal.", TableColumn())]
    error: Annotated[str, means("The refusal in words.", TableColumn())]


class DeadLetterList(msgspec.Struct, frozen=True):
    """All dead letters of one node, the oldest first."""

    dead_letters: list[DeadLetterRow]


class DeadLettersOfNode(msgspec.Struct, frozen=True):
    """Dead letters of one node; null where it does not answer, or is gone."""

    node: str
    dead_letters: Annotated[list[DeadLetterRow] | None, means("The oldest first.")]
    more: Annotated[bool | None, means("Whether there are more.")]
    kept: Annotated[int | None, means("How many it keeps.")]
    given_up: Annotated[int | None, means("That were too many to be kept, since the file was begun.")]


class DeadLetterNodes(msgspec.Struct, frozen=True):
    """Dead letters of all nodes."""

    nodes: list[DeadLettersOfNode]
    unknown: Annotated[dict[str, str], means("Node without an answer -> why.")]
    at_ms: int


class RetriedLetter(msgspec.Struct, frozen=True):
    """What became of a letter that was pushed again."""

    id: int
    outcome: Annotated[str | None, means("As of a push; null: it was not pushed.")]
    reason: Annotated[str | None, means("The code of a refusal.")]
    error: Annotated[str | None, means("The refusal in words.")]


class LettersRetried(msgspec.Struct, frozen=True):
    """What became of the letters that were pushed again."""

    retried: list[RetriedLetter]


class LettersDropped(msgspec.Struct, frozen=True):
    """How many letters were dropped."""

    dropped: int


class DeadLettersRequest(AuditedRequest, frozen=True, kw_only=True):
    """Dead letters of one node: those named, or all."""

    ids: (
        Annotated[
            list[Annotated[int, msgspec.Meta(ge=1, le=LETTER_ID_MAX)]],
            msgspec.Meta(max_length=IDS_MAX),
            right(f"a list of at most {IDS_MAX} numbers of dead letters"),
        ]
        | None
    ) = None
    node: (
        Annotated[
            str, msgspec.Meta(description="The node that keeps them, and numbers them; null: the one that is asked.")
        ]
        | None
    ) = None


RETRY: Final = Act("retry", DeadLettersRequest, LettersRetried, "retry dead letters", of_all=True)
DROP: Final = Act("drop", DeadLettersRequest, LettersDropped, "drop dead letters", of_all=True)

DEAD_LETTERS: Final = DescribedNoun(
    "dead-letters",
    path="/admin/sink/dead-letters",
    key="",
    row=DeadLetterRow,
    listing=DeadLetterList,
    one=None,
    views={"nodes": DeadLetterNodes},
    view_parameters={
        "nodes": {
            "limit": Parameter("Most of each node.", number=True),
            "after": Parameter("Only those with higher numbers; with `node` alone.", number=True),
            "node": Parameter("Only those of this node."),
        }
    },
    acts=(RETRY, DROP),
)
