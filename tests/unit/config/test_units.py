"""Sizes and durations as texts: exact both ways, and refusals that help."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.config.text import quantity
from isthmus.config.units import format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("200KB", 200_000), ("1MiB", 1 << 20), ("0B", 0), ("1.5KB", 1500), ("64 MB", 64_000_000), ("2TiB", 2 << 40)],
)
def test_sizes_are_read_exactly(text: str, size_bytes: int) -> None:
    """Decimal units are powers of 1000, binary ones of 1024, and decimals are exact."""
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [("1s", 1000), ("500ms", 500), ("2h", 7_200_000), ("1.5s", 1500), ("10m", 600_000), ("1d", 86_400_000)],
)
def test_durations_are_read_exactly(text: str, duration_ms: int) -> None:
    """Every unit of time counts in milliseconds."""
    assert parse_duration(text) == duration_ms


@given(st.integers(min_value=0, max_value=(1 << 63) - 1))
def test_written_units_round_trip(value: int) -> None:
    """A number written as size or duration is read back as that number."""
    assert parse_size(format_size(value)) == value
    assert parse_duration(format_duration(value)) == value


def test_the_shortest_text_is_written() -> None:
    """People see 64KB, 4KiB and 10m, not the number of bytes and milliseconds."""
    assert [format_size(size) for size in (0, 64_000, 4096, 1001, 1_024_000)] == [
        "0B",
        "64KB",
        "4KiB",
        "1001B",
        "1024KB",
    ]
    assert [format_duration(time) for time in (0, 90_000, 600_000, 1001)] == ["0s", "90s", "10m", "1001ms"]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("200kb", 'did you mean "KB"'),
        ("5xyz", None),
        ("200", 'write "200KB"'),
        ("1." + "0" * 30 + "1KB", "not a whole number of bytes"),
        ("0.5B", "not a whole number of bytes"),
        ("-1KB", "is not a size"),
        ("", "is not a size"),
        ("1e3KB", "is not a size"),
        ("9223372036854775808B", "too large"),
        ("9" * 5000 + "B", "is not a size"),
        ("٣KB", "is not a size"),
        ("5\nKB", "is not a size"),
    ],
)
def test_a_wrong_size_is_refused_with_a_hint(text: str, hint: str | None) -> None:
    """A text that is not an exact size raises ValueError with one short line that names a valid one."""
    with pytest.raises(ValueError, match='"') as caught:
        parse_size(text)
    assert (hint or "") in str(caught.value)
    assert len(str(caught.value)) < 200
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "hint"),
    [("5 minutes", 'did you mean "m"'), ("5S", 'did you mean "s"'), ("0.5ms", "whole number"), ("5", '"5s"')],
)
def test_a_wrong_duration_is_refused_with_a_hint(text: str, hint: str) -> None:
    """Units of other programs and fractions of a millisecond are refused, with the unit that is meant."""
    with pytest.raises(ValueError, match='"') as caught:
        parse_duration(text)
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (1, "partition", "1 partition"), (0, "partition", "0 partitions"), (2, "key", "2 keys"), (1, "key", "1 key"),
        (3, "batch", "3 batches"), (12_000, "entry", "12,000 entries"),
    ],
)  # fmt: skip
def test_a_number_of_things_has_its_plural(number: int, noun: str, text: str) -> None:
    """One thing is singular; other numbers take the plural of the noun."""
    assert quantity(number, noun) == text
