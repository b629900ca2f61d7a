"""The closed table of dynamic options: its ranges, and how values are read."""

from __future__ import annotations

import re

import pytest

from isthmus.config.dynamic_options import MIN_ISR, OPTIONS


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        ("replication.max.time.lag.millis", "3s", 3_000),
        ("replication.max.time.lag.millis", " 250 ", 250),
        ("replication.max.time.lag.millis", 100, 100),
        ("replication.catch.up.rate", "50MB", 50_000_000),
        ("replication.catch.up.rate", "50MB/s", 50_000_000),
        ("read.isolation.default", "uncommitted", "uncommitted"),
        (MIN_ISR, "-3", -3),
        (MIN_ISR, "99", 99),
    ],
)
def test_values_are_read_as_people_type_them(name: str, raw: object, value: object) -> None:
    """Numbers plain or with their unit; min-ISR also beyond its range, which clamps it."""
    assert OPTIONS[name].typed(raw) == value


@pytest.mark.parametrize(
    ("name", "raw", "says"),
    [
        (
            "replication.max.time.lag.millis",
            99,
            "replication.max.time.lag.millis: 99 is out of range; allowed is 100ms to 1h",
        ),
        ("replication.max.time.lag.millis", "soon", "not a duration"),
        ("replication.max.record.lag", "10s", "is not a whole number; allowed is 10 to 1000000"),
        ("replication.max.record.lag", True, "true is not a whole number"),
        ("replication.max.record.lag", None, "is not a whole number"),
        ("replication.catch.up.rate", "1KB", '"1KB" is out of range; allowed is 64KB to 10GB'),
        ("read.isolation.default", "dirty", '"dirty" is not known; choose one of "committed", "uncommitted"'),
        (MIN_ISR, 10**10, "10000000000 is out of range; allowed is 1 to the replication factor, clamped"),
        (MIN_ISR, "9" * 5000, "is not a whole number"),
        (MIN_ISR, "two", "1 to the replication factor"),
    ],
)
def test_an_invalid_value_is_refused_in_one_sentence(name: str, raw: object, says: str) -> None:
    """The message for a value that is out of range, of another type, or nonsense says which values are valid."""
    with pytest.raises(ValueError, match=re.escape(says)):
        OPTIONS[name].typed(raw)
