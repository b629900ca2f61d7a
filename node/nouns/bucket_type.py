"""The noun `bucket type`: the unit of placement, with its properties. Pure."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from isthmus.node.nouns.description import Act, DescribedNoun, TableColumn, means
from isthmus.node.nouns.requests import AuditedRequest, DryRun, right
from isthmus.repl.controller.bucket_types import PLACEMENTS
from isthmus.repl.controller.placement import PARTITIONS_MAX, REPLICAS_MAX


class BucketTypeRow(msgspec.Struct, frozen=True):
    """A bucket type, and how its partitions are."""

    bucket_type: Annotated[str, means("Its name.", TableColumn())]
    partition_count: Annotated[int, means("Partitions; never changed.", TableColumn("partitions"))]
    replication_factor: Annotated[int | None, means("Replicas of each; null: they differ.", TableColumn())]
    min_isr: Annotated[int | str, means("In force; a range where partitions differ.", TableColumn("min-isr"))]
    min_isr_set: Annotated[int | str | None, means("Its own setting; null: none.")]
    online: Annotated[int, means("Partitions that are online.", TableColumn())]
    in_sync: Annotated[int, means("Partitions of which all replicas are in sync.", TableColumn())]
    changing: Annotated[int, means("Partitions whose replicas change now.")]
    replication_factor_then: Annotated[int | None, means("Once all orders are carried out; null: they differ.")]
    orders: Annotated[list[int], means("Numbers of the orders that change its partitions.")]


class BucketTypes(msgspec.Struct, frozen=True):
    """All bucket types."""

    bucket_types: list[BucketTypeRow]


class PropertyRow(msgspec.Struct, frozen=True):
    """A property that may be set, of a bucket type or of one of its buckets."""

    property: Annotated[str, means("Its name.")]
    value: Annotated[bool | int | str, means("What is in force.")]
    origin: Annotated[Literal["bucket", "bucket type", "default"], means("Where that was set.")]
    by: Annotated[str | None, means("Who set it; null: nobody.")]
    at_ms: Annotated[int | None, means("When it was set.")]
    reason: Annotated[str | None, means("Why it was set.")]
    default: bool | int | str
    acts: Annotated[bool, means("Whether it has an effect; otherwise it is only kept and shown.")]
    right: Annotated[str, means("The values that are allowed, as text.")]
    meaning: Annotated[str, means("One sentence or more.")]


class PlacedPartition(msgspec.Struct, frozen=True):
    """A partition of a bucket type, and where its replicas are."""

    id: Annotated[int, means("Its index in the bucket type.")]
    replicas: Annotated[list[int | None], means("Node ids, as in placement files; null: a node that is gone.")]
    nodes: Annotated[list[str], means("The same by name.")]
    adding: list[str]
    removing: list[str]
    partition: Annotated[int, means("Its number in the cluster.")]
    leader: str | None
    status: str


class BucketTypeShown(BucketTypeRow, frozen=True):
    """A bucket type with its placement and its properties."""

    partitions: list[PlacedPartition]
    properties: list[PropertyRow]


class PartitionPlace(msgspec.Struct, frozen=True):
    """Where the replicas of a partition are, as in placement files: by node id."""

    id: int
    replicas: list[int]


class BucketTypeCreated(msgspec.Struct, frozen=True):
    """What the creation of a bucket type did, or would do."""

    outcome: Annotated[str, means("`created`, `exists`, or what it would be.")]
    bucket_type: str
    online: Annotated[int, means("Partitions that are online by now.")]
    partitions: list[PartitionPlace]


class CreateBucketTypeRequest(AuditedRequest, frozen=True, kw_only=True):
    """Create a bucket type: with a number of partitions and a replication factor, or with a replica map."""

    partition_count: Annotated[int, msgspec.Meta(ge=1, le=PARTITIONS_MAX)] | None = None
    replication_factor: Annotated[int, msgspec.Meta(ge=1, le=REPLICAS_MAX)] | None = None
    placement: Annotated[str, msgspec.Meta(extra_json_schema={"enum": list(PLACEMENTS)})] | None = None
    partitions: Annotated[Any, msgspec.Meta(description="A replica map, as of `bucket-type show`.")] = msgspec.UNSET
    min_isr: Annotated[Any, msgspec.Meta(description="As the option min-isr of the bucket type.")] = None
    props: Annotated[dict[str, Any], right('an object, for instance {"allow_mult": false}')] | None = None
    dry_run: DryRun = False


CREATE: Final = Act("", CreateBucketTypeRequest, BucketTypeCreated, "create bucket type {name}")

BUCKET_TYPE: Final = DescribedNoun(
    "bucket type",
    path="/admin/bucket-types",
    key="name",
    row=BucketTypeRow,
    listing=BucketTypes,
    one=BucketTypeShown,
    acts=(CREATE,),
)
