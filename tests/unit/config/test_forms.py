"""Forms of values and definitions: what a file, an operator and a program may write for the same setting."""

from __future__ import annotations

import re

import pytest

from isthmus.config.bucket_properties import PROPERTIES, parse_property
from isthmus.config.dynamic_options import MIN_ISR, OPTIONS
from isthmus.config.forms import BYTES, BYTES_A_SECOND, MILLISECONDS, Flag, Form, WholeNumber, WordOrNumber
from isthmus.config.schema import DEFAULT, SettingScope, settings_of
from isthmus.config.settings import ReplicationSettings


@pytest.mark.parametrize("definition", [*OPTIONS.values(), *PROPERTIES.values()], ids=lambda each: each.name)
def test_every_default_is_accepted_as_a_value_and_as_a_text(definition) -> None:
    """An operator may set what is the default anyhow. That of min-ISR depends on the partition and is no value."""
    if definition.name != MIN_ISR:
        assert definition.typed(definition.default) == definition.default
        assert definition.typed(str(definition.default)) == definition.default


@pytest.mark.parametrize(
    ("form", "in_file", "typed", "value"),
    [
        (WholeNumber(0, 9), 7, [7, "7", " 7 "], 7),
        (WholeNumber(-9, 9), -7, [-7, "-7"], -7),
        (WholeNumber(0, 9_000, MILLISECONDS), "3s", [3_000, "3000", "3s", " 3 s "], 3_000),
        (WholeNumber(0, 9_000, BYTES), "3KB", [3_000, "3000", "3KB"], 3_000),
        (WholeNumber(0, 9_000, BYTES_A_SECOND), "3KB", ["3KB", "3KB/s"], 3_000),
        (Flag(), True, [True, "true", "True"], True),
        (WordOrNumber(("all",), WholeNumber(0, 9)), "all", ["all"], "all"),
        (WordOrNumber(("all",), WholeNumber(0, 9)), 3, [3, "3"], 3),
    ],
)
def test_one_value_has_several_notations(form: Form, in_file: object, typed: list[object], value: object) -> None:
    """A file has one of them, with the unit in the text; operators and programs also write what needs no quotes."""
    assert form.parse(in_file) == value
    assert [form.typed(each) for each in typed] == [value] * len(typed)


@pytest.mark.parametrize(
    ("form", "raw", "sentence"),
    [
        (WholeNumber(0, 9_000, MILLISECONDS), 3_000, '3000 is not a duration; write it with its unit in quotes: "5s"'),
        (WholeNumber(0, 9_000, BYTES_A_SECOND), "3KB/s", '"3KB/s" is not a size'),
        (Flag(), "true", '"true" is neither true nor false; write one of these without quotes'),
        (WholeNumber(0, 9), "7", '"7" is not a whole number; write digits without quotes'),
    ],
)
def test_a_file_has_no_second_notation(form: Form, raw: object, sentence: str) -> None:
    """What an operator may type is refused in a file, with what a file has instead."""
    form.typed(raw)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        form.parse(raw)


def test_messages_about_options_and_properties_have_the_form_of_those_about_files() -> None:
    """Name, value, what is wrong, what is allowed; an option says the same about a value as its key in a file."""
    lag = settings_of(ReplicationSettings)["max_time_lag"]
    told = []
    for read, raw in (
        (lag.form.parse, "2h"),
        (OPTIONS["replication.max.time.lag.millis"].typed, "2h"),
        (lambda raw: parse_property("max_object_size", raw, None), "2TB"),
    ):
        with pytest.raises(ValueError, match="out of range") as caught:
            read(raw)
        told.append(str(caught.value))
    assert told == [
        '"2h" is out of range; allowed is 100ms to 1h',
        'replication.max.time.lag.millis: "2h" is out of range; allowed is 100ms to 1h',
        'max_object_size: "2TB" is out of range; allowed is 0B to 1TB; 0: the node\'s own limit',
    ]


def test_the_most_specific_scope_precedes() -> None:
    """A bucket type's value comes before the cluster's, before the file's; a scope that the option does not have is
    passed over; nothing is set: the default counts."""
    per_type, cluster = OPTIONS["read.isolation.default"], OPTIONS["replication.catch.up.rate"]
    found = {SettingScope.FILE: 1, SettingScope.CLUSTER: 2, SettingScope.BUCKET_TYPE: 3}
    assert per_type.preceding(found) == (3, "bucket type")
    assert cluster.preceding(found) == (2, "cluster")
    assert cluster.preceding({SettingScope.FILE: 1}) == (1, "file")
    assert PROPERTIES["r"].preceding({SettingScope.BUCKET_TYPE: 3, SettingScope.BUCKET: 4}) == (4, "bucket")
    assert cluster.preceding({}) == (None, DEFAULT)
