"""The properties of bucket types and buckets: one small document in the metastore, read by every node.

All settings lie in one znode, so one read returns one state, one watch reports every change, and a change is one
conditional write. Every node keeps the settings and their effect (`PropertyCache`), so a write looks into a dictionary
and never asks the metastore. While the metastore is away, the last settings count. `config.bucket_properties` defines
the properties.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import quote_from_bytes, unquote_to_bytes

import msgspec
import structlog
from msgspec import Raw, Struct
from xxhash import xxh64_digest

from isthmus.config.bucket_properties import IMMEDIATE, KEEP, PROPERTIES, value_of
from isthmus.config.schema import SettingScope, Value, file_name
from isthmus.repl.controller.stored_setting import Setting, check_expected
from isthmus.repl.metastore.port import Metastore, Versioned
from isthmus.repl.metastore.watched_document import Document, DocumentEvents, WatchedDocument, decode_json
from isthmus.repl.model.errors import BadInput, Corruption
from isthmus.repl.model.properties import PLAIN, Properties, TypeProperties
from isthmus.repl.property_digests import MUST_AGREE, OF_TYPE, PLAIN_SCOPE, ScopeDigests, scope_digest, within_bounds

log = structlog.get_logger(__name__)

PROPERTIES_PATH: Final = "/properties"

OWN_BUCKETS_MAX: Final = 1_000
"""Most buckets with properties of their own; one more is refused. Riak advises against more than a few hundred: buckets
that are alike belong into a bucket type."""

DOCUMENT_BYTES_MAX: Final = 400_000
"""Largest document, below what the metastore takes (512 KB); a change that would exceed it is refused."""


class TooManyProperties(BadInput):
    """The change would exceed OWN_BUCKETS_MAX or DOCUMENT_BYTES_MAX."""

    reason = "too-many-properties"


class PropertyScope(NamedTuple):
    """The owner of properties: a bucket type (`bucket` None), or a bucket."""

    bucket_type: str
    bucket: bytes | None = None

    @property
    def shown(self) -> str:
        """For people: TYPE or TYPE/BUCKET."""
        return self.bucket_type if self.bucket is None else f"{self.bucket_type}/{quote_from_bytes(self.bucket)}"


Chosen = Mapping[str, Setting]


@dataclass(frozen=True, slots=True)
class PropertySettings:
    """All settings by scope; a scope without settings is left out. `version` is the document's; None before there is
    one."""

    scopes: Mapping[PropertyScope, Chosen] = field(default_factory=dict)
    version: int | None = None

    def own(self, scope: PropertyScope) -> Chosen:
        """The settings of just this scope."""
        return self.scopes.get(scope, {})

    def chosen(self, scope: PropertyScope) -> Chosen:
        """The effective settings: the scope's own before its bucket type's."""
        return {**self.own(PropertyScope(scope.bucket_type)), **self.own(scope)}

    def by_scope(self, name: str, scope: PropertyScope) -> dict[SettingScope, Setting]:
        """The settings of one property that concern `scope`."""
        own = {} if scope.bucket is None else self.own(scope)
        chosen = {SettingScope.BUCKET: own, SettingScope.BUCKET_TYPE: self.own(PropertyScope(scope.bucket_type))}
        return {at: settings[name] for at, settings in chosen.items() if name in settings}

    def values(self, scope: PropertyScope) -> dict[str, Value]:
        """The values of `chosen`."""
        return {name: setting.value for name, setting in self.chosen(scope).items()}

    def changed(
        self, scope: PropertyScope, changes: Mapping[str, Setting | None], *, alone: bool = False
    ) -> PropertySettings:
        """A copy with `changes` (None unsets one); with `alone` all other settings of the scope are unset. Raises
        TooManyProperties."""
        own = {**({} if alone else self.own(scope)), **changes}
        scopes = {each: chosen for each, chosen in self.scopes.items() if each != scope}
        kept = {name: setting for name, setting in own.items() if setting is not None}
        if kept:
            scopes[scope] = kept
        buckets = sum(each.bucket is not None for each in scopes)
        if buckets > OWN_BUCKETS_MAX and scope not in self.scopes:
            raise TooManyProperties(
                f"{OWN_BUCKETS_MAX} buckets have properties of their own, which is the limit: set them for a bucket "
                "type, or take some back (`isthmus bucket unset`)"
            )
        return PropertySettings(scopes, self.version)

    def effective(self) -> dict[bytes, TypeProperties]:
        """The effective properties by bucket type; types without settings are left out."""
        found: dict[bytes, TypeProperties] = {}
        for kind in sorted({scope.bucket_type for scope in self.scopes}):
            buckets = {
                scope.bucket: effective(self.values(scope))
                for scope in self.scopes
                if scope.bucket_type == kind and scope.bucket is not None
            }
            found[kind.encode()] = TypeProperties(effective(self.values(PropertyScope(kind))), buckets)
        return found


def effective(chosen: Mapping[str, Value]) -> Properties:
    """The properties of the given values; the others have their defaults. A field has its property's name, with the
    unit as a field of settings has it."""
    mode = value_of("delete_mode", chosen)
    values: dict[str, Any] = {field: value_of(name, chosen) for field, name in _OF_FIELD.items()}
    return Properties(reap_after_ms=None if mode == KEEP else 0 if mode == IMMEDIATE else int(mode), **values)


_OF_FIELD: Final = {field: file_name(field) for field in Properties._fields if field != "reap_after_ms"}


# -- the document ---------------------------------------------------------------------------------


class _PropertiesForm(Struct):
    """The JSON of the document: [bucket type, bucket in percent encoding or null, {property: [value, by, at_ms]}].

    `reasons` has [bucket type, bucket, {property: reason}] of those that have one. A program that does not know reasons
    ignores them, and drops all when it changes the document."""

    v: Literal[1]
    places: list[tuple[str, str | None, dict[str, Raw]]]
    reasons: list[tuple[str, str | None, dict[str, str]]] = []


def encode_properties(settings: PropertySettings) -> bytes:
    """Canonical bytes of the document."""

    def rows(facts: Callable[[Setting], Any]) -> list[tuple[str, str | None, dict[str, Any]]]:
        found = []
        for scope, chosen in settings.scopes.items():
            bucket = None if scope.bucket is None else quote_from_bytes(scope.bucket, safe="")
            known = {name: shown for name, each in sorted(chosen.items()) if (shown := facts(each))}
            found += [(scope.bucket_type, bucket, known)] if known else []
        return sorted(found, key=lambda row: (row[0], row[1] or ""))

    document: dict[str, Any] = {"v": 1, "places": rows(lambda each: (each.value, each.by, each.at_ms))}
    if reasons := rows(lambda each: each.reason):
        document["reasons"] = reasons
    return msgspec.json.encode(document)


def decode_properties(found: Versioned | None) -> PropertySettings:
    """The settings in the document at PROPERTIES_PATH. Properties that this version does not know are left out, and are
    removed by the next change. Raises Corruption."""
    if found is None:
        return PropertySettings()
    scopes = {}
    form = decode_json(PROPERTIES_PATH, found.value, _PropertiesForm)
    reasons = {(bucket_type, bucket): texts for bucket_type, bucket, texts in form.reasons}
    for bucket_type, bucket, chosen in form.places:
        why = reasons.get((bucket_type, bucket), {})
        known = {name: _setting(name, raw, why.get(name, "")) for name, raw in chosen.items() if name in PROPERTIES}
        if known:
            scopes[PropertyScope(bucket_type, None if bucket is None else unquote_to_bytes(bucket))] = known
    return PropertySettings(scopes, found.version)


def _setting(name: str, raw: Raw, reason: str) -> Setting:
    value, by, at_ms = decode_json(PROPERTIES_PATH, raw, tuple[Any, str, int])
    try:
        return Setting(PROPERTIES[name].typed(value), by, at_ms, reason)
    except ValueError as error:
        raise Corruption(f"{PROPERTIES_PATH} in the metastore: {name}: {error!r:.200}") from error


# -- the metastore --------------------------------------------------------------------------------

PROPERTIES_DOCUMENT: Final = Document(PROPERTIES_PATH, decode_properties, encode_properties)


def check_own(
    settings: PropertySettings,
    scope: PropertyScope,
    names: Iterable[str],
    *,
    alone: bool,
    expected: Mapping[str, Value] | None,
) -> None:
    """Raises ChangedMeanwhile unless those of the scope's own properties that are to be changed are as expected.

    `names`: the properties to change; with `alone` all. `expected`: the own properties that the operator saw; one that
    is missing there was not set. None: whatever they are."""
    if expected is None:
        return
    own = settings.own(scope)
    for name in sorted({*names, *((own.keys() | expected.keys()) if alone else ())}):
        check_expected(f"{name} of {scope.shown}", expected.get(name), own.get(name))


async def change_properties(
    metastore: Metastore,
    scope: PropertyScope,
    changes: Mapping[str, Setting | None],
    *,
    alone: bool = False,
    expected: Mapping[str, Value] | None = None,
) -> PropertySettings:
    """Set properties of a scope, or unset those whose setting is None; with `alone` unset all others, too. `expected`:
    see `check_own`. Returns all settings after the change. Raises TooManyProperties, ChangedMeanwhile and NotReady when
    nothing was changed, OutcomeUnknown, Corruption."""

    def changed(before: PropertySettings) -> PropertySettings:
        after = before.changed(scope, changes, alone=alone)
        if after != before:  # equal: made by an attempt whose answer was lost
            check_own(before, scope, changes, alone=alone, expected=expected)
        if after != before and (size_bytes := len(encode_properties(after))) > DOCUMENT_BYTES_MAX:
            raise TooManyProperties(
                f"all properties together would take {size_bytes} bytes of the metastore, at most "
                f"{DOCUMENT_BYTES_MAX} are allowed: set them for bucket types rather than for buckets"
            )
        return after

    after, written = await PROPERTIES_DOCUMENT.change(metastore, changed)
    if written:
        values = {name: None if each is None else each.value for name, each in changes.items()}
        by = next((each.by for each in changes.values() if each is not None), None)
        log.info("properties.changed", place=scope.shown, changes=values, alone=alone, by=by)
    return after


def _digest(settings: PropertySettings, kind: str) -> bytes:
    def agreed(scope: PropertyScope) -> list[Value]:
        values = settings.values(scope)
        return [value_of(name, values) for name in MUST_AGREE]

    of_type = agreed(PropertyScope(kind))
    buckets = sorted((p.bucket, agreed(p)) for p in settings.scopes if p.bucket_type == kind and p.bucket)
    own = [[quote_from_bytes(bucket, safe=""), values] for bucket, values in buckets if values != of_type]
    return xxh64_digest(json.dumps([of_type, own]).encode())


PLAIN_DIGEST: Final = _digest(PropertySettings(), "")
"""The digest of a bucket type without settings."""


DIGESTS_MAX: Final = 1_024
"""Most bucket types whose digests are sent to other clusters, the first by name: each fetch carries them."""


def _digests(settings: PropertySettings) -> dict[bytes, bytes]:
    found = {kind: _digest(settings, kind) for kind in sorted({scope.bucket_type for scope in settings.scopes})}
    rows = sorted((kind.encode(), digest) for kind, digest in found.items() if digest != PLAIN_DIGEST)
    return dict(rows[:DIGESTS_MAX])


def scope_digests(settings: PropertySettings) -> ScopeDigests | None:
    """Digests by scope; None if there are more than may be sent, since a part of them would show false differences."""
    found: dict[bytes, dict[bytes, bytes]] = {}
    for kind in sorted({scope.bucket_type for scope in settings.scopes}):
        of_type = scope_digest(settings.values(PropertyScope(kind)))
        rows = {} if of_type == PLAIN_SCOPE else {OF_TYPE: of_type}
        for scope in settings.scopes:
            if scope.bucket_type == kind and scope.bucket:
                digest = scope_digest(settings.values(scope))
                if digest != of_type:
                    rows[scope.bucket] = digest
        if rows:
            found[kind.encode()] = rows
    return found if within_bounds(found) else None


class PropertyCache:
    """The newest properties that this node could read, and their effect."""

    def __init__(self, metastore: Metastore) -> None:
        self._document = WatchedDocument(
            metastore,
            PROPERTIES_DOCUMENT,
            PropertySettings(),
            DocumentEvents("properties.unreadable", "properties.metastore_unavailable"),
            self.learn,
        )
        self._types: Mapping[bytes, TypeProperties] = {}
        self.settings = PropertySettings()
        """The newest settings that were read or written here."""
        self._digests: dict[bytes, bytes] = {}
        """Computed when the settings change, since every fetch and every answer to one carries them."""
        self._scope_digests: ScopeDigests | None = {}
        """Computed when the settings change, too."""

    def of_type(self, bucket_type: bytes) -> TypeProperties:
        """The properties of a bucket type's buckets."""
        return self._types.get(bucket_type, PLAIN)

    def digests(self) -> dict[bytes, bytes]:
        """Bucket type -> 8 bytes, equal where the properties that replicating clusters must share (MUST_AGREE) are
        equal, those of its buckets included. A type without settings has PLAIN_DIGEST and is left out, and so are
        types beyond DIGESTS_MAX."""
        return dict(self._digests)

    def scope_digests(self) -> ScopeDigests | None:
        """Digests by bucket and bucket type, which name a difference; None when there are more than may be sent."""
        return self._scope_digests

    async def start(self) -> None:
        """Read the properties and follow every change. The defaults count until the metastore can be read."""
        await self._document.start()

    async def stop(self) -> None:
        """Stop following; idempotent."""
        await self._document.stop()

    def learn(self, settings: PropertySettings) -> None:
        """Use these settings from now on, unless newer ones are known."""
        newest = self.settings.version
        if newest is not None and (settings.version is None or settings.version <= newest):
            return
        self.settings, self._types = settings, settings.effective()
        self._digests = _digests(settings)
        self._scope_digests = scope_digests(settings)
