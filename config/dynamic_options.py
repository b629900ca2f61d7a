"""Dynamic options: the closed table of options that an operator may change while a cluster runs.

Their values are in the metastore (`repl.controller.dynamic_options`) and apply to all nodes. An option that a node's
file may set, too, is defined by that setting. docs/settings.md is generated from this table. Pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Final

from isthmus.config.forms import MILLISECONDS, PARTITIONS, REPLICAS, ROUNDS, Form, WholeNumber
from isthmus.config.schema import SettingDefinition, SettingScope, settings_of
from isthmus.config.settings import HOUR, MINUTE, SECOND, Effect, ReplicationSettings

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

NUMBER_MAX: Final = 1_000_000_000
"""Largest number of an option whose range depends on the partition; a larger one is a mistake."""

PER_TYPE: Final = (SettingScope.BUCKET_TYPE, SettingScope.CLUSTER)
"""A bucket type may have its own value."""


def _option(
    name: str, form: Form, default: int | str, meaning: str, scopes: tuple[SettingScope, ...] = (SettingScope.CLUSTER,)
) -> SettingDefinition:
    return SettingDefinition(name, form, default, scopes, Effect.AT_ONCE, meaning)


def _of_file(name: str, field: str, scopes: tuple[SettingScope, ...] = (SettingScope.CLUSTER,)) -> SettingDefinition:
    """An option with the form, default and meaning of a field of [replication], which it precedes."""
    setting = next(each for each in settings_of(ReplicationSettings).values() if each.field == field)
    return dataclasses.replace(setting, name=name, scopes=(*scopes, SettingScope.FILE), effect=Effect.AT_ONCE)


def _table() -> Iterator[SettingDefinition]:
    yield _option(
        MIN_ISR,
        WholeNumber(-NUMBER_MAX, NUMBER_MAX, REPLICAS, clamped="1 to the replication factor, clamped"),
        "RF - 1",
        "How many replicas must have a write before it is acknowledged. Unset: one less than the replication factor, "
        "at least 1. A higher value takes effect at once. After a lower one, replicas that may be the only ones with "
        "an acknowledged entry stay electable.",
        PER_TYPE,
    )
    yield _of_file(MAX_TIME_LAG, "max_time_lag_ms", PER_TYPE)
    yield _of_file(MAX_RECORD_LAG, "max_record_lag_count", PER_TYPE)
    yield _of_file(MAX_NEAR_SYNC_LAG, "max_near_sync_message_lag_count", PER_TYPE)
    yield _option(
        MIN_TRANSFER_ROUNDS,
        WholeNumber(1, 100, ROUNDS),
        2,
        "Least number of transfer rounds of a far-horizon catch-up before the follower tries the log again. More "
        "rounds follow until the log reaches back far enough.",
        PER_TYPE,
    )
    yield _of_file(CATCH_UP_RATE, "catch_up_rate_limit_bytes")
    yield _of_file(READ_ISOLATION, "read_isolation", PER_TYPE)
    yield _option(
        ELECTION_ASK,
        WholeNumber(1, 1 * MINUTE, MILLISECONDS),
        500,
        "How long an election waits for the log positions of eligible replicas. Safety does not depend on it.",
    )
    yield _option(
        ELECTION_RESPONSE_MIN,
        WholeNumber(100, 1 * HOUR, MILLISECONDS),
        2 * SECOND,
        "How long the first candidate may take to promote itself before the next one is nominated.",
    )
    yield _option(
        ELECTION_RESPONSE_MAX,
        WholeNumber(100, 1 * HOUR, MILLISECONDS),
        10 * SECOND,
        "Longest time a candidate may take to promote itself. The time grows by half with each candidate that did not "
        "answer.",
    )
    yield _option(
        ELECTION_BACK_OFF_MIN,
        WholeNumber(100, 1 * HOUR, MILLISECONDS),
        1 * SECOND,
        "Pause after all eligible replicas were nominated without success.",
    )
    yield _option(
        ELECTION_BACK_OFF_MAX,
        WholeNumber(100, 1 * HOUR, MILLISECONDS),
        30 * SECOND,
        "Longest pause after all eligible replicas were nominated without success. The pause doubles each time. Each "
        "attempt uses up one of 2^20 epochs.",
    )
    yield _option(
        MOVES_AT_ONCE,
        WholeNumber(0, 1_000, PARTITIONS),
        4,
        "How many partitions may change their replicas at once. 0: no further change begins; those under way continue.",
    )


OPTIONS: Final[Mapping[str, SettingDefinition]] = {option.name: option for option in _table()}
"""Option by name, in the order of listings."""
