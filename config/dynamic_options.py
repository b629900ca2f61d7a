"""Dynamic options: the closed table of options that an operator may change while a cluster runs.

Their values are in the metastore (`repl.controller.dynamic_options`) and apply to all nodes. A bucket type's value
precedes the cluster's, which precedes the node's file, which precedes the default. docs/settings.md is generated from
this table. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from isthmus.config.settings import GB, KB, MB
from isthmus.config.text import shown
from isthmus.config.units import parse_duration, parse_size

MIN_ISR: Final = "replication.min.isr"
MAX_TIME_LAG: Final = "replication.max.time.lag.millis"
MAX_RECORD_LAG: Final = "replication.max.record.lag"
MAX_NEAR_SYNC_LAG: Final = "replication.max.near.sync.message.lag"
MIN_TRANSFER_ROUNDS: Final = "replication.far.horizon.min.transfer.rounds"
CATCH_UP_RATE: Final = "replication.catch.up.rate"
READ_ISOLATION: Final = "read.isolation.default"
ELECTION_ASK: Final = "election.ask.millis"
ELECTION_RESPONSE_MIN: Final = "election.response.min.millis"
ELECTION_RESPONSE_MAX: Final = "election.response.max.millis"
ELECTION_BACK_OFF_MIN: Final = "election.back.off.min.millis"
ELECTION_BACK_OFF_MAX: Final = "election.back.off.max.millis"
MOVES_AT_ONCE: Final = "placement.moves.at.once"

BY_FILE: Final = "the file of node "
"""How the author of a setting begins that a cluster took from the config of its first node: no person set it."""

MILLISECONDS: Final = "ms"
BYTES_A_SECOND: Final = "bytes/s"

NUMBER_MAX: Final = 1_000_000_000
"""Largest number, also of a clamped option: a larger one is a mistake about the unit."""

HOUR_MS: Final = 3_600_000

Value = int | str


@dataclass(frozen=True, slots=True)
class Option:
    """A dynamic option.

    `default` None: the default is derived, as `meaning` describes. `choices`: the values of an option that is not a
    number. `per_type`: a bucket type may have its own value. `clamped`: a number out of range is replaced by the
    nearest in range. `setting`: the corresponding field of [replication] in a node's file, "" for none.
    """

    name: str
    default: Value | None
    unit: str
    meaning: str
    least: int = 0
    most: int = NUMBER_MAX
    choices: tuple[str, ...] = ()
    per_type: bool = False
    clamped: bool = False
    setting: str = ""

    @property
    def scope(self) -> str:
        """The scopes that the option may be set for, as text."""
        return "cluster, bucket type" if self.per_type else "cluster"

    @property
    def allowed(self) -> str:
        """The range of values, as text."""
        if self.choices:
            return ", ".join(self.choices)
        return "1 to the replication factor, clamped" if self.clamped else f"{self.least} to {self.most}"

    @property
    def default_text(self) -> str:
        """The default, as text."""
        return "RF - 1" if self.default is None else str(self.default)

    def parse(self, raw: Any) -> Value:
        """The value of `raw`, a number or text; durations and sizes may have a unit ("3s", "50MB"). Raises ValueError.

        A number out of range is returned as it is if the option is clamped."""
        if self.choices:
            if raw not in self.choices:
                raise ValueError(f"{self.name} is one of {self.allowed}, not {shown(raw)}")
            return str(raw)
        number = self._number(raw)
        if self.clamped:
            if abs(number) > NUMBER_MAX:
                raise ValueError(f"{self.name} is {self.allowed}; {shown(number)} is beyond all use")
        elif not self.least <= number <= self.most:
            raise ValueError(f"{self.name} is {self.allowed} {self.unit}, not {shown(number)}")
        return number

    def _number(self, raw: Any) -> int:
        if type(raw) is int:
            return raw
        text = raw.strip() if type(raw) is str else ""
        digits = text.removeprefix("-")
        if digits.isascii() and digits.isdigit() and len(digits) <= len(str(NUMBER_MAX * KB)):
            return int(text)
        if text and self.unit == MILLISECONDS:
            return parse_duration(text)
        if text and self.unit == BYTES_A_SECOND:
            return parse_size(text.removesuffix("/s"))
        raise ValueError(f"{self.name} is a whole number of {self.unit}, {self.allowed}; {shown(raw)} is none")


_TABLE: Final = (
    Option(
        MIN_ISR,
        None,
        "replicas",
        "How many replicas must have a write before it is acknowledged. Unset: one less than the replication factor, "
        "at least 1. A higher value takes effect at once. After a lower one, replicas that may be the only ones with "
        "an acknowledged entry stay electable.",
        per_type=True,
        clamped=True,
    ),
    Option(
        MAX_TIME_LAG,
        3_000,
        MILLISECONDS,
        "How long an ISR member may take to acknowledge an entry before it leaves the ISR.",
        least=100,
        most=HOUR_MS,
        per_type=True,
        setting="max_time_lag_ms",
    ),
    Option(
        MAX_RECORD_LAG,
        10_000,
        "entries",
        "How many entries an ISR member's applied state may be behind before it leaves the ISR. The ISR never shrinks "
        "below min-ISR for this reason.",
        least=10,
        most=1_000_000,
        per_type=True,
        setting="max_record_lag_count",
    ),
    Option(
        MAX_NEAR_SYNC_LAG,
        20_000,
        "entries",
        "How many entries a follower may be behind and still catch up from the log (near horizon). The node's "
        "`replication.window_entries` applies instead if it is larger.",
        least=10,
        most=10_000_000,
        per_type=True,
        setting="max_near_sync_message_lag_count",
    ),
    Option(
        MIN_TRANSFER_ROUNDS,
        2,
        "rounds",
        "Least number of transfer rounds of a far-horizon catch-up before the follower tries the log again. More "
        "rounds follow until the log reaches back far enough.",
        least=1,
        most=100,
        per_type=True,
    ),
    Option(
        CATCH_UP_RATE,
        100 * MB,
        BYTES_A_SECOND,
        "Most bytes a second that each node sends to followers out of sync, all of them together.",
        least=64 * KB,
        most=10 * GB,
        setting="catch_up_rate_limit_bytes",
    ),
    Option(
        READ_ISOLATION,
        "committed",
        "",
        "Isolation of a read that does not name one (`isolation`). A batch is read `uncommitted` only if all of its "
        "bucket types have this default.",
        choices=("committed", "uncommitted"),
        per_type=True,
        setting="read_isolation",
    ),
    Option(
        ELECTION_ASK,
        500,
        MILLISECONDS,
        "How long an election waits for the log positions of eligible replicas. Safety does not depend on it.",
        least=1,
        most=60_000,
    ),
    Option(
        ELECTION_RESPONSE_MIN,
        2_000,
        MILLISECONDS,
        "How long the first candidate may take to promote itself before the next one is nominated.",
        least=100,
        most=HOUR_MS,
    ),
    Option(
        ELECTION_RESPONSE_MAX,
        10_000,
        MILLISECONDS,
        "Longest time a candidate may take to promote itself. The time grows by half with each candidate that did not "
        "answer.",
        least=100,
        most=HOUR_MS,
    ),
    Option(
        ELECTION_BACK_OFF_MIN,
        1_000,
        MILLISECONDS,
        "Pause after all eligible replicas were nominated without success.",
        least=100,
        most=HOUR_MS,
    ),
    Option(
        ELECTION_BACK_OFF_MAX,
        30_000,
        MILLISECONDS,
        "Longest pause after all eligible replicas were nominated without success. The pause doubles each time. Each "
        "attempt uses up one of 2^20 epochs.",
        least=100,
        most=HOUR_MS,
    ),
    Option(
        MOVES_AT_ONCE,
        4,
        "partitions",
        "How many partitions may change their replicas at once. 0: no further change begins; those under way continue.",
        least=0,
        most=1_000,
    ),
)

OPTIONS: Final[Mapping[str, Option]] = {option.name: option for option in _TABLE}
"""Option by name, in the order of listings."""
