"""Keys of a config file, derived from the dataclasses of `config.settings`.

A key is its field's name without the unit, since in files the unit is part of the value: `poll_ms` is `poll = "5s"`,
`queue_limit_count` is `queue_limit = 300000`. Bytes are a size: `log_file_bytes` is `log_file_size = "64MB"`, unless
the name already ends in size or limit (`log_size_bytes` is `log_size`). docs/settings.md is generated from these keys.
"""

from __future__ import annotations

import dataclasses
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, get_args, get_origin, get_type_hints

from isthmus.config.settings import Address, LogSettings, Settings
from isthmus.config.text import toml_text
from isthmus.config.units import format_duration, format_size
from isthmus.config.validation import Choice, Form, TextForm, ValueRange


class SettingKind(Enum):
    """Form of a value in a file."""

    TABLE = "a table"
    TABLES = "an array of tables"
    TEXT = "a text"
    FLAG = "true or false"
    NUMBER = "a whole number"
    DURATION = "a duration"
    SIZE = "a size"
    ADDRESS = "an address"
    PATH = "a path"


class SettingKey(NamedTuple):
    """One key of a section. `section` is the dataclass that has it, `inner` the dataclass of a table's keys."""

    section: type
    field: str
    name: str
    kind: SettingKind
    required: bool
    default: Any
    inner: type | None
    form: Form | None


RELOADED: Final = frozenset(
    {(LogSettings, "level"), (LogSettings, "audit_size_bytes"), (LogSettings, "audit_files_count")}
)
"""Settings that a running node reads again at SIGHUP."""

NO_DEFAULT: Final = None
"""`SettingKey.default` of a required key."""


@cache
def keys_of(section: type) -> dict[str, SettingKey]:
    """Key name in a file -> key, in the order of the dataclass; `Settings.origins` is not a key."""
    hints = get_type_hints(section, include_extras=True)
    keys = {}
    for field in dataclasses.fields(section):
        if section is Settings and field.name == "origins":
            continue
        hint, form = _unwrapped(hints[field.name])
        kind, inner = _kind(field.name, hint)
        assert form is not None or kind not in _WITH_FORM, f"{section.__name__}.{field.name} has no form"
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        default = NO_DEFAULT if required else field.default
        key = SettingKey(section, field.name, file_name(field.name), kind, required, default, inner, form)
        assert key.name not in keys, f"two settings of {section.__name__} would share the key {key.name}"
        keys[key.name] = key
    return keys


def file_name(field_name: str) -> str:
    """The key of a field: its name without the unit."""
    if field_name.endswith("_bytes"):
        bare = field_name.removesuffix("_bytes")
        return bare if bare.endswith(("_size", "_limit")) else f"{bare}_size"
    return field_name.removesuffix("_ms").removesuffix("_count")


def as_text(key: SettingKey, value: Any) -> str:
    """A value as a file would have it (with the quotes of TOML around texts)."""
    match key.kind:
        case SettingKind.DURATION:
            return toml_text(format_duration(value))
        case SettingKind.SIZE:
            return toml_text(format_size(value))
        case SettingKind.FLAG:
            return "true" if value else "false"
        case SettingKind.NUMBER:
            return str(value)
        case _:
            return toml_text("" if value is None else str(value))


def range_text(key: SettingKey) -> str:
    """The values of a key, for messages and docs: "100ms to 1h", a list of choices, or a form."""
    match key.form:
        case ValueRange(least, most):
            written = {SettingKind.DURATION: format_duration, SettingKind.SIZE: format_size}.get(key.kind, str)
            return f"{written(least)} to {written(most)}"
        case Choice():
            return ", ".join(toml_text(choice) for choice in key.form.values)
        case TextForm():
            return key.form.title
    forms = {SettingKind.ADDRESS: "HOST:PORT", SettingKind.PATH: "a path", SettingKind.FLAG: "true, false"}
    return forms[key.kind]


_WITH_FORM: Final = (SettingKind.NUMBER, SettingKind.DURATION, SettingKind.SIZE, SettingKind.TEXT)
"""Kinds whose fields are annotated with a form."""


def _unwrapped(hint: Any) -> tuple[Any, Form | None]:
    """The type of a field, and the form that it is annotated with."""
    if get_origin(hint) is not Annotated:
        return hint, None
    plain, form = get_args(hint)
    return plain, form


def _kind(name: str, hint: Any) -> tuple[SettingKind, type | None]:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type) and hint is not Address:
        return SettingKind.TABLE, hint
    if get_origin(hint) is tuple:
        return SettingKind.TABLES, get_args(hint)[0]
    if hint is int and name.endswith("_ms"):
        return SettingKind.DURATION, None
    if hint is int and name.endswith("_bytes"):
        return SettingKind.SIZE, None
    plain = {
        int: SettingKind.NUMBER,
        bool: SettingKind.FLAG,
        str: SettingKind.TEXT,
        Path: SettingKind.PATH,
        Path | None: SettingKind.PATH,
        Address: SettingKind.ADDRESS,
    }
    return plain[hint], None
