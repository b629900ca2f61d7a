"""The closed table of dynamic options: its ranges, and how values are read."""

from __future__ import annotations

import dataclasses
import re

import pytest

from isthmus.config.dynamic_options import MIN_ISR, OPTIONS
from isthmus.config.schema import keys_of
from isthmus.config.settings import ReplicationSettings


def test_an_option_that_a_file_may_set_has_the_files_default_and_range() -> None:
    """Defaults and ranges must not differ between the two places."""
    defaults = {field.name: field.default for field in dataclasses.fields(ReplicationSettings)}
    forms = {key.field: key.form for key in keys_of(ReplicationSettings).values()}
    for option in OPTIONS.values():
        if option.setting:
            assert option.default == defaults[option.setting], option.name
            if not option.choices:
                assert (option.least, option.most) == forms[option.setting], option.name


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
    assert OPTIONS[name].parse(raw) == value


@pytest.mark.parametrize(
    ("name", "raw", "says"),
    [
        ("replication.max.time.lag.millis", 99, "100 to 3600000 ms, not 99"),
        ("replication.max.time.lag.millis", "soon", "not a duration"),
        ("replication.max.record.lag", "10s", "whole number of entries"),
        ("replication.max.record.lag", True, "true is none"),
        ("replication.max.record.lag", None, "is none"),
        ("replication.catch.up.rate", "1KB", "64000 to"),
        ("read.isolation.default", "dirty", 'one of committed, uncommitted, not "dirty"'),
        (MIN_ISR, 10**10, "beyond all use"),
        (MIN_ISR, "two", "1 to the replication factor"),
    ],
)
def test_an_invalid_value_is_refused_in_one_sentence(name: str, raw: object, says: str) -> None:
    """The message for a value that is out of range, of another type, or nonsense says which values are valid."""
    with pytest.raises(ValueError, match=re.escape(says)):
        OPTIONS[name].parse(raw)
