"""Codes of findings, each with its remedy and its alerts: the one table that links a finding, an alert and a runbook.

An alert's runbook is the section of its name in docs/runbooks.md. docs/metrics.md shows the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple


class Code(StrEnum):
    """What a finding is about, for programs; the sentence is for people."""

    ACTOR_RENEWED = "actor-renewed"
    CERTIFICATE = "certificate"
    CLOCK = "clock"
    CREDENTIALS = "credentials"
    DEFECT = "defect"
    BUCKET_TYPE_LACKING = "bucket-type-lacking"
    CLUSTER = "cluster"
    DEAD_LETTERS = "dead-letters"
    DISK_FREE = "disk-free"
    DOCUMENT_UNREADABLE = "document-unreadable"
    FULLSYNC = "fullsync"
    FULLSYNC_LACKING = "fullsync-lacking"
    FULLSYNC_UNPROVEN = "fullsync-unproven"
    GAPS = "gaps"
    LAG = "lag"
    LEDGER = "ledger"
    LINKS_FAIL = "links-fail"
    METASTORE = "metastore"
    MIN_ISR = "min-isr"
    NODE_DOWN = "node-down"
    NODE_SILENT = "node-silent"
    NOT_KNOWN = "not-known"
    OFFLINE = "offline"
    OUT_OF_SYNC = "out-of-sync"
    RIAK_LOST = "riak-lost"
    RIAK_SEED = "riak-seed"
    SHORT = "short"
    UNDIALLED = "undialled"
    WRITES_REFUSED = "writes-refused"


class CodeEntry(NamedTuple):
    """What belongs to a code."""

    remedy: str
    """What an operator does next, unless the finding says something else."""
    alerts: tuple[str, ...] = ()
    """Alerts of deploy/prometheus/isthmus-alerts.yml that fire on it, with its severity."""
    words: str = ""
    """Words of the sentence that the summaries of these alerts have, too."""
    beside: tuple[str, ...] = ()
    """Alerts about the same condition by other metrics."""
    because: str = ""
    """Why Prometheus judges there by itself."""


OTHER: Final = ("IsthmusOtherFinding",)
"""The alert about findings that have none of their own."""

UNKNOWN: Final = ("IsthmusNotKnown",)
"""The alert about what is not known."""

CODES: Final[Mapping[Code, CodeEntry]] = {
    Code.ACTOR_RENEWED: CodeEntry(
        "compare at a node of each cluster: isthmus fullsync run all --wait; see docs/backup.md",
        beside=("IsthmusActorsRenewed",),
        because="Prometheus knows that it was within the last hour; the finding stays until the node is restarted",
    ),
    Code.BUCKET_TYPE_LACKING: CodeEntry(
        "make the bucket type where it is lacking: isthmus bucket-type create NAME",
        ("IsthmusBucketTypeMissing",),
        words="its changes",
    ),
    Code.CERTIFICATE: CodeEntry(
        "put a new certificate in the place of the file: nodes read it without a restart",
        beside=("IsthmusCertificateExpires", "IsthmusCertificateExpiresNow"),
        because="Prometheus has the time of each file, also of a node that has ended meanwhile",
    ),
    Code.CLOCK: CodeEntry(
        "let that machine keep its time: chronyc tracking, or timedatectl timesync-status there, shows why not",
        ("IsthmusClockWrong",),
        words="its clock is",
    ),
    Code.CLUSTER: CodeEntry("see what the cluster does: isthmus cluster status", OTHER),
    Code.CREDENTIALS: CodeEntry("see the file that the sentence names: nodes read it again without a restart", OTHER),
    Code.DEAD_LETTERS: CodeEntry(
        "read why, then retry or drop them: isthmus sink dead-letters list",
        ("IsthmusDeadLetters",),
        words="dead letters",
    ),
    Code.DEFECT: CodeEntry(
        "report it with the node's log: isthmus support-bundle",
        beside=("IsthmusUnforeseenErrors",),
        because="Prometheus knows that it was within the last hour; the finding stays for a day",
    ),
    Code.DISK_FREE: CodeEntry(
        "make room on that disk, or move replicas away (runbook: a disk is full)",
        ("IsthmusDiskNearlyFull",),
        words="of its disk",
        beside=("IsthmusDiskFills",),
        because="Prometheus sees the pace at which a disk fills",
    ),
    Code.DOCUMENT_UNREADABLE: CodeEntry(
        "set it again as it should be (runbook: a document of the metastore cannot be read)",
        beside=("IsthmusMetastoreDocumentUnreadable",),
        because="Prometheus has the number of documents, of each node that cannot read them",
    ),
    Code.FULLSYNC: CodeEntry("see the newest results: isthmus fullsync status", OTHER),
    Code.FULLSYNC_LACKING: CodeEntry(
        "let a full-sync compare what the queue sends: isthmus fullsync add-peer, or [[fullsync]]", OTHER
    ),
    Code.FULLSYNC_UNPROVEN: CodeEntry(
        "compare now: isthmus fullsync run all --wait",
        OTHER,
        beside=("IsthmusFullSyncLate", "IsthmusFullSyncNeverProven"),
        because="they count in checks of the schedule: where these are frequent, they fire before the finding, whose "
        "age is fixed",
    ),
    Code.GAPS: CodeEntry(
        "full-sync closes them; compare now: isthmus fullsync run all --wait",
        ("IsthmusGapsOpen",),
        words="not proven yet",
    ),
    Code.LAG: CodeEntry(
        "see the cause here (isthmus lag), and the sinks of the cluster that fetches (isthmus sink list there)",
        ("IsthmusQueueLag", "IsthmusLagUnknown"),
        words="behind",
    ),
    Code.LEDGER: CodeEntry(
        "keep the logs, compare (isthmus fullsync run all --wait), and report it: isthmus support-bundle",
        ("IsthmusLedgerOff",),
        words="the ledger is off",
    ),
    Code.LINKS_FAIL: CodeEntry(
        "see each link and its error: isthmus sink list", ("IsthmusSinkFailing",), words="fetches from"
    ),
    Code.METASTORE: CodeEntry(
        "see ZooKeeper and this node's log: isthmus cluster status",
        beside=("IsthmusMetastoreUnreachable", "IsthmusNotRegistered"),
        because="the finding says that what a node shows may be old; how long that lasts, at which nodes, is what "
        "Prometheus judges",
    ),
    Code.MIN_ISR: CodeEntry(
        "start the nodes that lack: isthmus partition list",
        ("IsthmusWritesRefused",),
        words="too few replicas are in sync to take writes (min-ISR)",
    ),
    Code.NODE_DOWN: CodeEntry(
        "start the node; if it is lost for good: isthmus node drain NODE, then node remove",
        beside=("IsthmusNodeDown",),
        because="Prometheus asks the node itself, also where no node of the cluster answers",
    ),
    Code.NODE_SILENT: CodeEntry("look at the node's process, its load and its log", UNKNOWN),
    Code.NOT_KNOWN: CodeEntry("ask again; if it stays so, see the node's log", UNKNOWN),
    Code.OFFLINE: CodeEntry(
        "start the replicas that it waits for: isthmus partition list",
        ("IsthmusPartitionOffline",),
        words="partitions are not online",
    ),
    Code.OUT_OF_SYNC: CodeEntry(
        "see which replicas lack, and why: isthmus partition list",
        ("IsthmusUnderReplicated",),
        words="partitions lack replicas in sync",
    ),
    Code.RIAK_LOST: CodeEntry(
        "let the Riak's full-sync find them, or bring all keys once more: isthmus riak seed NAME", OTHER
    ),
    Code.RIAK_SEED: CodeEntry("order the seed again: isthmus riak seed NAME; or stop it, with --stop", OTHER),
    Code.SHORT: CodeEntry(
        "raise the node's limit of open files, or free inodes (runbook: files or inodes are short)",
        beside=("IsthmusOpenFilesNearlyShort", "IsthmusInodesNearlyShort"),
        because="each shortage has an alert of its own, with its number; a limit of open files that leaves no room "
        "for listen.connections_limit has none, since nothing is short yet",
    ),
    Code.UNDIALLED: CodeEntry(
        "check that node's listen.advertise and listen.cluster, and the firewall between the two", OTHER
    ),
    Code.WRITES_REFUSED: CodeEntry(
        "give that node what the sentence names as short (runbooks: a disk is full; files or inodes are short)",
        beside=("IsthmusDiskFull",),
        because="that a node refuses writes is a metric of its own, also of a node that holds no partition",
    ),
}
"""Every code."""
