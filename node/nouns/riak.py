"""The noun `riak`: Riaks that changes are fetched from, and their seeds. Pure.

Links to their nodes are links of the sink, with its suspensions, limits, dead letters and conflicts (`sink`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from isthmus.config.settings import SINK_WORKERS_MAX
from isthmus.node.nouns.description import Act, DescribedNoun, TableColumn, means
from isthmus.node.nouns.requests import AuditedRequest, Name, Rate, right
from isthmus.node.nouns.rows import SignedAct
from isthmus.node.nouns.sink import CheckedLine


def links_in_words(row: Mapping[str, Any]) -> str:
    """How many of a Riak's links are in which state: "2 running, 1 failing"."""
    states = row.get("states") or {}
    return ", ".join(f"{count} {state}" for state, count in sorted(states.items())) or "none"


def seed_in_words(row: Mapping[str, Any]) -> str:
    """How far the newest seed is: "running 42 %", "" for none."""
    seed = row.get("seed")
    if not isinstance(seed, dict):
        return ""
    share = f" {100 * (seed.get('fraction') or 0):.0f} %" if seed.get("state") != "done" else ""
    return f"{seed.get('state')}{share}"


class SeedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A seed: all keys of a Riak, or of a part of it, brought here once."""

    state: Annotated[
        Literal["running", "interrupted", "stopped", "failed", "done"],
        means("How far it is; interrupted: the node that runs it is not live."),
    ]
    way: Annotated[Literal["queue", "keys"], means("By the Riak's queue, or by its lists of keys.")]
    node: Annotated[str, means("The node that runs it, or ran it.")]
    bucket_type: Annotated[str | None, means("Percent-encoded; null: all that are taken.")]
    bucket: Annotated[str | None, means("Percent-encoded; null: all.")]
    fraction: Annotated[float, means("How much of it is done, by buckets, up to 1.")]
    left_ms: Annotated[int | None, means("About how long it still takes; null: not known.")]
    buckets: Annotated[int | None, means("In all; null: not listed yet.")]
    buckets_done: int
    current: Annotated[tuple[str, str] | None, means("Bucket type and bucket that it is at, percent-encoded.")]
    current_keys: Annotated[int | None, means("Keys of that bucket; null: not counted.")]
    current_done: Annotated[int, means("Of them, that are done.")]
    keys: Annotated[int, means("That the Riak was asked to send, or whose objects were fetched.")]
    compared: Annotated[int, means("Keys whose clocks were compared with the Riak's.")]
    missing: Annotated[int, means("Of them, that are not here as in the Riak, after they were sent twice.")]
    refused: Annotated[int, means("Objects that became dead letters.")]
    notes: Annotated[list[str], means("What to know of it.")]
    notes_left_out: int
    error: Annotated[str, means("Why it failed, or what it waits for.")]
    began_ms: int
    changed_ms: Annotated[int, means("When its record was last written.")]
    ended_ms: int | None
    set: Annotated[SignedAct, means("Who began or stopped it.")]


class RiakRow(msgspec.Struct, frozen=True, kw_only=True):
    """A Riak that changes are fetched from."""

    name: Annotated[str, means("Its name.", TableColumn())]
    queue: Annotated[str, means("Its queue.", TableColumn())]
    urls: Annotated[list[str], means("Its nodes.")]
    bucket_types: Annotated[str, means("That are taken; `*`: all.", TableColumn("types", leave=3))]
    from_: Annotated[Literal["config", "operator"], means("Who named it.", TableColumn(leave=4))] = msgspec.field(
        name="from"
    )
    set: Annotated[SignedAct | None, means("The operator who added it; null: none did.")]
    user: Annotated[str, means("Sent by basic authentication; empty: nothing is sent.")]
    workers: Annotated[int, means("Most at once on a node; 0: no limit of its own.")]
    bytes_per_second: Annotated[int, means("Of each node; 0: no limit of its own.")]
    objects_per_second: Annotated[int, means("Of each node; 0: no limit of its own.")]
    states: Annotated[
        dict[str, int], means("State -> links of this node in it.", TableColumn("links", shown=links_in_words))
    ]
    unusable: Annotated[
        str, means("Why this node cannot fetch from it; empty: it can.", TableColumn(leave=2, text=True, nothing=True))
    ]
    left_out: Annotated[int, means("Changes not taken by this node: other bucket types, reaps.")]
    answers_lost: Annotated[int, means("Answers that did not come whole to this node.")]
    lost: Annotated[int, means("Changes that this node took and neither stored nor kept.", TableColumn(leave=1))]
    seed: Annotated[SeedRow | None, means("Its newest seed; null: there was none.", TableColumn(shown=seed_in_words))]


class RiakList(msgspec.Struct, frozen=True):
    """All Riaks, as one node sees them."""

    node: str
    riaks: list[RiakRow]


class RiakChecked(msgspec.Struct, frozen=True):
    """Whether a Riak could be fetched from, as one node sees it."""

    node: str
    url: str
    queue: str
    checks: list[CheckedLine]


_Types = Annotated[str, msgspec.Meta(description="Separated by commas; `*`: all.")]
_File = Annotated[str, msgspec.Meta(description="An absolute path, the same on every node.")]


class RiakAccessRequest(AuditedRequest, frozen=True, kw_only=True):
    """Nodes of a Riak, and the credentials for them."""

    urls: Annotated[Name, right('base URLs separated by commas: {"urls": "http://10.2.0.1:8098"}')]
    queue: Annotated[Name, right('the name of the queue there: {"queue": "isthmus"}')]
    bucket_types: _Types | None = None
    user: str | None = None
    password_file: _File | None = None
    authority: _File | None = None


class AddRiakRequest(RiakAccessRequest, frozen=True, kw_only=True):
    """A Riak to fetch from."""

    name: Annotated[Name, right('a name for it: {"name": "old"}')]
    workers: Annotated[int, msgspec.Meta(ge=0, le=SINK_WORKERS_MAX)] | None = None
    bytes_per_second: Rate | None = None
    objects_per_second: Rate | None = None


class NamedRiakRequest(AuditedRequest, frozen=True, kw_only=True):
    """Nothing but who and why."""


class SeedRequest(AuditedRequest, frozen=True, kw_only=True):
    """What is seeded: everything, a bucket type, or a bucket. Names are percent-encoded."""

    way: Literal["queue", "keys"] = "queue"
    bucket_type: str | None = None
    bucket: str | None = None


ADD: Final = Act("add", AddRiakRequest, RiakList, "add a Riak", of_all=True)
CHECK: Final = Act("check", RiakAccessRequest, RiakChecked, "", of_all=True)
REMOVE: Final = Act("remove", NamedRiakRequest, RiakList, "remove Riak {riak}")
SEED: Final = Act("seed", SeedRequest, RiakList, "seed from Riak {riak}")
STOP_SEED: Final = Act("seed/stop", NamedRiakRequest, RiakList, "stop the seed from Riak {riak}")

RIAK: Final = DescribedNoun(
    "riak",
    path="/admin/riaks",
    key="riak",
    row=RiakRow,
    listing=RiakList,
    one=None,
    acts=(ADD, CHECK, REMOVE, SEED, STOP_SEED),
)
