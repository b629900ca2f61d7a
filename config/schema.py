"""Definitions of settings, dynamic options and bucket properties: name, scopes, form, default, meaning.

The keys of a config file are derived from the dataclasses of `config.settings`; `config.dynamic_options` and
`config.bucket_properties` list the others. docs/settings.md is generated from all of them. A key is its field's name
without the unit, since in files the unit is part of the value: `poll_ms` is `poll = "5s"`, `queue_limit_count` is
`queue_limit = 300000`. Bytes are a size: `log_file_bytes` is `log_file_size = "64MB"`, unless the name already ends in
size or limit (`log_size_bytes` is `log_size`).
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
from collections.abc import Mapping
from enum import Enum
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from isthmus.config.forms import (
    BYTES,
    BYTES_A_SECOND,
    COUNT,
    MILLISECONDS,
    AddressForm,
    Flag,
    Form,
    PathForm,
    Unit,
    WholeNumber,
)
from isthmus.config.settings import Address, Effect, Settings

Value = bool | int | str
"""A value of an option or property."""

DEFAULT: Final = "default"
"""Origin of a value that no scope sets."""

T = TypeVar("T")


class SettingScope(Enum):
    """Where a value is set, the one that precedes all others first. The values are what operators see as its origin."""

    BUCKET = "bucket"
    BUCKET_TYPE = "bucket type"
    CLUSTER = "cluster"
    FILE = "file"


@dataclasses.dataclass(frozen=True, slots=True)
class SettingDefinition:
    """What can be set. `scopes`: where, in the order of `SettingScope`. `section` and `field`: where a node's file sets
    it. `own_text`: its meaning, unless that is the field's docstring."""

    name: str
    form: Form
    default: Any
    scopes: tuple[SettingScope, ...]
    effect: Effect
    own_text: str = ""
    section: type | None = None
    field: str = ""
    required: bool = False

    @property
    def meaning(self) -> str:
        """What it does, in one line, and when that counts unless at the next start or at once. Raises ValueError for a
        field without a docstring."""
        if self.own_text or self.section is None:
            return self.own_text
        found = _docstrings(self.section.__module__).get((self.section.__name__, self.field))
        if found is None:
            raise ValueError(f"{self.section.__name__}.{self.field} has no docstring")
        return found + _WHEN.get(self.effect, "")

    @property
    def scopes_text(self) -> str:
        """The scopes that operators set an option or property for."""
        return ", ".join(reversed([each.value for each in self.scopes if each is not SettingScope.FILE]))

    def typed(self, raw: Any) -> Any:
        """The value of what an operator typed, or of JSON. Raises ValueError, which names the definition."""
        try:
            return self.form.typed(raw)
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from error

    def preceding(self, found: Mapping[SettingScope, T]) -> tuple[T | None, str]:
        """What counts of what is set in some scopes, and its origin; None and DEFAULT if nothing is set."""
        scope = next((each for each in self.scopes if each in found), None)
        return (None, DEFAULT) if scope is None else (found[scope], scope.value)


class Section(NamedTuple):
    """A table of a config file, or an array of tables (`many`), of which each has the fields of the class `kind`."""

    name: str
    field: str
    kind: type
    many: bool
    required: bool
    default: Any


@cache
def keys_of(section: type) -> dict[str, SettingDefinition | Section]:
    """Key name in a file -> key, in the order of the dataclass; `Settings.origins` is not a key."""
    hints = get_type_hints(section, include_extras=True)
    keys: dict[str, SettingDefinition | Section] = {}
    for field in dataclasses.fields(section):
        if section is Settings and field.name == "origins":
            continue
        required = field.default is dataclasses.MISSING
        key = _key(section, field.name, hints[field.name], None if required else field.default, required=required)
        assert key.name not in keys, f"two settings of {section.__name__} would share the key {key.name}"
        keys[key.name] = key
    return keys


def settings_of(section: type) -> dict[str, SettingDefinition]:
    """The keys of a section without the sections within it."""
    return {name: key for name, key in keys_of(section).items() if isinstance(key, SettingDefinition)}


def sections_of(section: type) -> list[Section]:
    """The sections within a section."""
    return [key for key in keys_of(section).values() if isinstance(key, Section)]


def reloaded(settings: Settings, found: Settings) -> Settings:
    """`settings` with those of `found` that a running node reads again."""
    sections = {}
    for section in sections_of(Settings):
        now, new = (getattr(each, section.field) for each in (settings, found))
        again = [key.field for key in settings_of(section.kind).values() if key.effect is Effect.RELOAD]
        if again:
            sections[section.field] = dataclasses.replace(now, **{field: getattr(new, field) for field in again})
    return dataclasses.replace(settings, **sections)


def file_name(field_name: str) -> str:
    """The key of a field: its name without the unit."""
    if field_name.endswith("_bytes"):
        bare = field_name.removesuffix("_bytes")
        return bare if bare.endswith(("_size", "_limit")) else f"{bare}_size"
    return field_name.removesuffix("_ms").removesuffix("_count")


_WHEN: Final[Mapping[Effect, str]] = {
    Effect.CREATION: " Counts when the cluster is created, never later.",
    Effect.RELOAD: " SIGHUP reads it again.",
}
"""The last sentence of the meaning of settings whose effect is an exception."""

_UNITS: Final[Mapping[str, Unit]] = {"_ms": MILLISECONDS, "_rate_limit_bytes": BYTES_A_SECOND, "_bytes": BYTES}
"""Ends of fields' names and their units, the first that fits."""

_FORMS: Final[Mapping[Any, Form]] = {
    bool: Flag(),
    Path: PathForm(needed=True),
    Path | None: PathForm(needed=False),
    Address: AddressForm(),
}
"""The forms of types that have only one; fields of other types are annotated with theirs."""


def _key(section: type, name: str, hint: Any, default: Any, *, required: bool) -> SettingDefinition | Section:
    if get_origin(hint) is tuple:
        return Section(name, name, get_args(hint)[0], True, required, default)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type) and hint is not Address:
        return Section(name, name, hint, False, required, default)
    plain, *notes = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    form = next((each for each in notes if isinstance(each, Form)), None) or _FORMS.get(plain)
    effect = next((each for each in notes if isinstance(each, Effect)), Effect.START)
    assert form is not None, f"{section.__name__}.{name} has no form"
    if isinstance(form, WholeNumber) and form.unit is COUNT:
        unit = next((unit for end, unit in _UNITS.items() if name.endswith(end)), COUNT)
        form = dataclasses.replace(form, unit=unit)
    return SettingDefinition(
        file_name(name), form, default, (SettingScope.FILE,), effect, section=section, field=name, required=required
    )


@cache
def _docstrings(module: str) -> dict[tuple[str, str], str]:
    """(class, field) -> the docstring below the field, in one line."""
    found = {}
    for each in ast.parse(inspect.getsource(sys.modules[module])).body:
        body = each.body if isinstance(each, ast.ClassDef) else []
        for field, below in pairwise(body):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    assert isinstance(each, ast.ClassDef)
                    found[each.name, name] = " ".join(text.split())
    return found
