"""Forms of values: what a setting, option or property may be, and how it is read and written. Pure.

Values have two notations. In a config file (`parse`) texts are in quotes and durations and sizes have a unit. Operators
and programs (`typed`) also give a number without its unit, and a text for any value. Both raise ValueError with a
sentence: what is wrong, and what would be right.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from isthmus.config import validation
from isthmus.config.text import shown, toml_text
from isthmus.config.units import format_duration, format_size, parse_duration, parse_size

DIGITS_MAX: Final = 20
"""Longest number in a text; 2^64 has as many. No range reaches a longer one."""


class Form(ABC):
    """The values of one kind."""

    @property
    @abstractmethod
    def allowed(self) -> str:
        """The values, for messages and docs: "100ms to 1h", a list of choices, or a form."""

    @property
    def plain(self) -> str:
        """`allowed` without units and quotes."""
        return self.allowed

    @property
    def unit_name(self) -> str:
        """The unit of a number, for a column beside it; empty: none."""
        return ""

    @abstractmethod
    def parse(self, raw: Any) -> Any:
        """The value of a parsed TOML value."""

    def typed(self, raw: Any) -> Any:
        """The value of what an operator typed, or of JSON."""
        return self.parse(raw)

    def text(self, value: Any) -> str:
        """A value as a file would have it, with the quotes of TOML around texts."""
        return toml_text("" if value is None else str(value))


class Unit(NamedTuple):
    """The unit of a number: its name, what a number with it is called, and how a file writes one; `parse` None: as
    digits."""

    name: str
    noun: str = "a whole number"
    example: str = ""
    parse: Callable[[str], int] | None = None
    format: Callable[[int], str] = str


COUNT: Final = Unit("")
ENTRIES: Final = Unit("entries")
REPLICAS: Final = Unit("replicas")
ROUNDS: Final = Unit("rounds")
PARTITIONS: Final = Unit("partitions")
MILLISECONDS: Final = Unit("ms", "a duration", "5s", parse_duration, format_duration)
BYTES: Final = Unit("bytes", "a size", "200KB", parse_size, format_size)
BYTES_A_SECOND: Final = Unit("bytes/s", "a size", "200KB", parse_size, format_size)


@dataclass(frozen=True, slots=True)
class WholeNumber(Form):
    """A whole number: least and greatest value, both allowed, in `unit`.

    `clamped`: the range that a value is brought into where it is applied, as text; a value beyond it is allowed.
    `zero`: what 0 stands for."""

    least: int
    most: int
    unit: Unit = COUNT
    clamped: str = ""
    zero: str = ""

    @property
    def unit_name(self) -> str:
        """See Form."""
        return self.unit.name

    @property
    def allowed(self) -> str:
        """See Form."""
        known = self.clamped or f"{self.unit.format(self.least)} to {self.unit.format(self.most)}"
        return f"{known}; 0: {self.zero}" if self.zero else known

    @property
    def plain(self) -> str:
        """See Form."""
        return self.clamped or f"{self.least} to {self.most}"

    def parse(self, raw: Any) -> int:
        """See Form."""
        if self.unit.parse is None:
            if type(raw) is not int:
                raise ValueError(f"{shown(raw)} is not a whole number; write digits without quotes")
            return self._in_range(raw, raw)
        text = _text(raw, f'{self.unit.noun}; write it with its unit in quotes: "{self.unit.example}"')
        return self._in_range(self.unit.parse(text), raw)

    def typed(self, raw: Any) -> int:
        """See Form."""
        if type(raw) is int:
            return self._in_range(raw, raw)
        text = raw.strip() if isinstance(raw, str) else ""
        digits = text.removeprefix("-")
        if digits.isascii() and digits.isdigit() and len(digits) <= DIGITS_MAX:
            return self._in_range(int(text), raw)
        if text and self.unit.parse is not None:
            size = text.removesuffix("/s") if self.unit is BYTES_A_SECOND else text
            return self._in_range(self.unit.parse(size), raw)
        raise ValueError(f"{shown(raw)} is not {self.unit.noun}; allowed is {self.allowed}")

    def text(self, value: Any) -> str:
        """See Form."""
        return str(value) if self.unit.parse is None else toml_text(self.unit.format(value))

    def _in_range(self, number: int, raw: Any) -> int:
        if not self.least <= number <= self.most:
            raise ValueError(f"{shown(raw)} is out of range; allowed is {self.allowed}")
        return number


class Flag(Form):
    """True or false."""

    allowed = "true, false"

    def parse(self, raw: Any) -> bool:
        """See Form."""
        if type(raw) is not bool:
            raise ValueError(f"{shown(raw)} is neither true nor false; write one of these without quotes")
        return raw

    def typed(self, raw: Any) -> bool:
        """See Form."""
        if type(raw) is bool:
            return raw
        if isinstance(raw, str) and raw.lower() in ("true", "false"):
            return raw.lower() == "true"
        raise ValueError(f"{shown(raw)} is neither true nor false; write one of these")

    def text(self, value: Any) -> str:
        """See Form."""
        return "true" if value else "false"


class Choice(Form):
    """One of a few texts."""

    def __init__(self, *values: str) -> None:
        self.values = values

    @property
    def allowed(self) -> str:
        """See Form."""
        return ", ".join(map(toml_text, self.values))

    @property
    def plain(self) -> str:
        """See Form."""
        return ", ".join(self.values)

    def parse(self, raw: Any) -> str:
        """See Form."""
        return self.typed(_text(raw))

    def typed(self, raw: Any) -> str:
        """See Form."""
        if raw in self.values:
            return str(raw)
        if len(self.values) == 1:
            raise ValueError(f"{shown(raw)} is not known; this version knows {self.allowed} only")
        raise ValueError(f"{shown(raw)} is not known; choose one of {self.allowed}")


@dataclass(frozen=True, slots=True)
class WordOrNumber(Form):
    """One of a few words, or a number."""

    words: tuple[str, ...]
    number: WholeNumber

    @property
    def allowed(self) -> str:
        """See Form."""
        return f"{', '.join(self.words)}, or {self.number.allowed}"

    def parse(self, raw: Any) -> str | int:
        """See Form."""
        return str(raw) if raw in self.words else self.number.parse(raw)

    def typed(self, raw: Any) -> str | int:
        """See Form."""
        if raw in self.words:
            return str(raw)
        try:
            return self.number.typed(raw)
        except ValueError:
            raise ValueError(f"{shown(raw)} is not known; allowed is {self.allowed}") from None


@dataclass(frozen=True, slots=True)
class Text(Form):
    """A text: `check` returns it in its normal form or raises ValueError; `title` is its name in the docs."""

    check: Callable[[str], str]
    title: str

    @property
    def allowed(self) -> str:
        """See Form."""
        return self.title

    def parse(self, raw: Any) -> str:
        """See Form."""
        return self.check(_text(raw))


class AddressForm(Form):
    """Host and port."""

    allowed = "HOST:PORT"

    def parse(self, raw: Any) -> validation.Address:
        """See Form."""
        return validation.parse_address(_text(raw, 'an address; write HOST:PORT in quotes: "127.0.0.1:8098"'))


@dataclass(frozen=True, slots=True)
class PathForm(Form):
    """A path, relative ones as they are; an empty text is none, unless one is `needed`."""

    needed: bool

    @property
    def allowed(self) -> str:
        """See Form."""
        return "a path"

    def parse(self, raw: Any) -> Path | None:
        """See Form."""
        text = _text(raw)
        if not text and not self.needed:
            return None
        if not text.strip() or "\0" in text:
            raise ValueError(f"{shown(text)} is not a path")
        if text.startswith("~"):
            raise ValueError(f'{shown(text)}: "~" has no meaning to a service; write the whole path')
        return Path(text)


def _text(raw: Any, wanted: str = "a text; write it in quotes") -> str:
    if not isinstance(raw, str):
        raise ValueError(f"{shown(raw)} is not {wanted}")
    return raw


NAME: Final = Text(validation.check_name, "a name")
NAME_OR_NONE: Final = Text(validation.check_name_or_none, "a name")
HOST: Final = Text(validation.check_host, "a host")
HOSTS: Final = Text(validation.check_hosts, "HOST:PORT,...")
METASTORE_PATH: Final = Text(validation.check_root, "a path of nodes")
PEER_URL: Final = Text(validation.check_peer_url, "http(s)://HOST:PORT")
COLLECTOR_URL: Final = Text(validation.check_collector_url, "http(s)://HOST:PORT/PATH")
PEER_URLS: Final = Text(validation.check_urls, "http(s)://HOST:PORT,...")
USER: Final = Text(validation.check_user, "a name without a colon")
BUCKET_TYPES: Final = Text(validation.check_types, "*, NAME,...")
HOURS: Final = Text(validation.check_window, "FIRST-END, always, never")
FILTER: Final = Text(validation.check_filter, "rules")
