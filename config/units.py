"""Sizes and durations as text: "200KB" and "1s" to whole bytes and milliseconds, and back.

Exact or refused: decimals are allowed ("1.5s") if the result is a whole number of bytes or milliseconds. For config
files and the command line; elsewhere numbers have their unit in the name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Final

from isthmus.config.text import shown

SIZE_UNITS: Final[Mapping[str, int]] = {
    "B": 1,
    "KB": 1000,
    "KiB": 1 << 10,
    "MB": 1000**2,
    "MiB": 1 << 20,
    "GB": 1000**3,
    "GiB": 1 << 30,
    "TB": 1000**4,
    "TiB": 1 << 40,
}
"""Decimal units are powers of 1000, binary units powers of 1024 (IEC 80000-13)."""

DURATION_UNITS: Final[Mapping[str, int]] = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
"""In milliseconds; "m" is minutes."""

TEXT_LENGTH_MAX: Final = 40
"""Longest text; longer ones are refused before any arithmetic. 2^63 bytes take 20 characters."""

_NUMBER_AND_UNIT = re.compile(r"([0-9]+(?:\.[0-9]+)?)[ ]?([A-Za-zµ]*)", re.ASCII)


def parse_size(text: str) -> int:
    """Bytes of "200KB", "1MiB", "0B". ValueError with a sentence: what is wrong and what would be right."""
    return _parse(text, SIZE_UNITS, "size", "bytes", "200KB")


def parse_duration(text: str) -> int:
    """Milliseconds of "500ms", "1.5s", "2h". ValueError as `parse_size`."""
    return _parse(text, DURATION_UNITS, "duration", "milliseconds", "1s")


def format_size(size_bytes: int) -> str:
    """The shortest exact text: 64000 is "64KB", 4096 is "4KiB", 0 is "0B"; `parse_size` reads it back."""
    return _format(size_bytes, SIZE_UNITS, "B")


def format_duration(duration_ms: int) -> str:
    """The shortest exact text: 90000 is "90s", 600000 is "10m", 0 is "0s"; `parse_duration` reads it back."""
    return _format(duration_ms, DURATION_UNITS, "s")


def _parse(text: str, units: Mapping[str, int], noun: str, whole: str, example: str) -> int:
    found = _NUMBER_AND_UNIT.fullmatch(text.strip()) if len(text) <= TEXT_LENGTH_MAX else None
    if found is None:
        raise ValueError(f'{shown(text)} is not a {noun}; write a number and a unit, such as "{example}"')
    number, unit = found[1], found[2]
    if not unit:
        likeliest = "KB" if "KB" in units else "s"
        raise ValueError(f'{shown(text)} lacks a unit; write "{number}{likeliest}" or another of {", ".join(units)}')
    if unit not in units:
        meant = _meant(unit, units)
        raise ValueError(f'{shown(text)}: there is no {noun} unit "{unit}"; {meant}units are {", ".join(units)}')
    value = Fraction(number) * units[unit]
    if value.denominator != 1:
        raise ValueError(f"{shown(text)} is not a whole number of {whole}")
    if value >= 1 << 63:
        raise ValueError(f"{shown(text)} is too large a {noun}")
    return int(value)


def _format(value: int, units: Mapping[str, int], zero_unit: str) -> str:
    assert value >= 0
    if value == 0:
        return f"0{zero_unit}"
    exact = [f"{value // factor}{unit}" for unit, factor in units.items() if value % factor == 0]
    return min(exact, key=len)


def _meant(unit: str, units: Mapping[str, int]) -> str:
    """A hint for a unit in the wrong case or spelled as in other programs."""
    spelled = {"sec": "s", "secs": "s", "second": "s", "seconds": "s", "min": "m", "mins": "m", "minute": "m"}
    spelled |= {"minutes": "m", "hour": "h", "hours": "h", "day": "d", "days": "d", "k": "KB", "g": "GB"}
    spelled |= {"bytes": "B", "byte": "B"}
    folded = {known.lower(): known for known in units}
    guess = folded.get(unit.lower()) or spelled.get(unit.lower())
    return f'did you mean "{guess}"? ' if guess in units else ""
