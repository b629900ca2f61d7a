"""Several small documents of the metastore that are one: read and changed together, each with its codec.

Programs of the version before have each of them at a path of its own. So `JoinedDocument` has two forms:

    apart     each document at its path, as the version before has it; nothing is at the joined path
    joined    one JSON object at the joined path: {"v": 1, NAME: value, ...}, by the last names of the former paths; a
              document that has nothing set is left out. At each former path is a marker.
    apart -> joined    by the first change once every node reads the joined form (`Metastore.all_read_joined`), every
              document can be decoded and all fit into one value. One multi-write on the versions that were read.

A change while they are apart writes what it changes, in one multi-write, too. The marker is a JSON text, which no codec
of a document accepts: a program of the version before that is started later finds what it reads unreadable, and what it
writes on an older version is refused. There is no way back to the form apart.

A document that cannot be decoded hides no other, in either form: it is named, the others are read and changed, and its
bytes stay until it is set anew.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec
import structlog

from isthmus.repl.metastore.codecs import RECORD_BYTES_MAX
from isthmus.repl.metastore.port import ConditionalWrite, Metastore, Precondition, Versioned
from isthmus.repl.metastore.watched_document import (
    Document,
    DocumentEvents,
    PlannedChange,
    WatchedValue,
    repeat_change,
)
from isthmus.repl.model.errors import CodecError

log = structlog.get_logger(__name__)

F = TypeVar("F")

FORM_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class _Part:
    """One document as it was read, or is to be written. `data`: None if there is none, or it has nothing set."""

    place: str
    """Where it is, for sentences."""
    data: bytes | None
    value: Any = None
    error: CodecError | None = None
    """Why `data` cannot be decoded."""


class JoinedValues:
    """The values of all documents as they were read together."""

    def __init__(self, parts: Mapping[str, _Part]) -> None:
        """By the former path of each document."""
        self._parts = parts

    def __getitem__(self, document: Document[F]) -> F:
        """The value of `document`. Raises CodecError, which names the place, if it cannot be decoded."""
        part = self._parts[document.path]
        if part.error is not None:
            raise part.error
        value: F = part.value
        return value

    def error(self, document: Document[Any]) -> str:
        """Why `document` cannot be decoded; "" if it can."""
        error = self._parts[document.path].error
        return "" if error is None else str(error)

    def place(self, document: Document[Any]) -> str:
        """Where `document` is in the metastore."""
        return self._parts[document.path].place

    def data(self, document: Document[Any]) -> bytes | None:
        """The bytes of `document`."""
        return self._parts[document.path].data

    def replaced(self, document: Document[F], value: F) -> JoinedValues:
        """These, with `value` for `document`. One that was not decoded counts as changed, whatever the value."""
        before = self._parts[document.path]
        data = document.encode(value)
        if before.error is None and data == document.encode(before.value):
            return self
        part = _Part(before.place, data, value)
        return JoinedValues({**self._parts, document.path: part})

    def changed(self, before: JoinedValues) -> set[str]:
        """The former paths of what is not as it was in `before`, from which these were made."""
        return {path for path, part in self._parts.items() if part is not before._parts[path]}


class JoinedChange(NamedTuple):
    """The values after `JoinedDocument.change`; `written` is True if this call wrote them."""

    values: JoinedValues
    written: bool


class _Found(NamedTuple):
    version: int | None
    """Version of the joined document; None: there is none."""
    former: Mapping[str, int]
    """Versions of the documents, while they are apart."""
    values: JoinedValues


class JoinedDocument:
    """`documents` and the path where they are one; see the module."""

    def __init__(self, path: str, documents: Iterable[Document[Any]]) -> None:
        """While they are apart they are read in the order of `documents`. Their decoders use no versions, raise nothing
        but CodecError, and raise it for a JSON text."""
        self.path = path
        self._documents = {document.path.rpartition("/")[2]: document for document in documents}
        self._marker = msgspec.json.encode(f"moved to {path}")
        self.paths = (path, *(document.path for document in self._documents.values()))

    @property
    def documents(self) -> Collection[Document[Any]]:
        """The documents that are joined."""
        return self._documents.values()

    def nothing_set(self) -> JoinedValues:
        """The values of documents that do not exist."""
        return self._values({})

    async def read(self, metastore: Metastore) -> JoinedValues:
        """The values now. Raises CodecError if the joined document is damaged as a whole, and what the metastore
        raises."""
        return (await self._find(metastore)).values

    async def change(
        self,
        metastore: Metastore,
        change: Callable[[JoinedValues], JoinedValues],
        conditions: Callable[[], Awaitable[Collection[Precondition]]] | None = None,
    ) -> JoinedChange:
        """Write what `change` makes of the values, on the versions that were read. `change` is called once per attempt;
        applied to its own result it must change nothing. `conditions` is called before it, and what it returns must
        hold as well. Raises what they raise, CodecError as `read`, TooLarge, NotReady when nothing was written, and
        OutcomeUnknown when a write may have taken effect."""

        async def plan() -> PlannedChange[JoinedChange]:
            others = await conditions() if conditions is not None else ()
            found = await self._find(metastore)
            after = change(found.values)
            changed = after.changed(found.values)
            if not changed:
                return PlannedChange(JoinedChange(found.values, written=False))
            writes, unmoved = await self._writes(metastore, found, after, changed)
            result = JoinedChange(after, written=True)

            async def write() -> JoinedChange:
                await metastore.put_all(writes, [*unmoved, *others])
                if found.version is None and writes[0].path == self.path:
                    log.info("metastore.documents_joined", path=self.path)
                return result

            return PlannedChange(result, write)

        return await repeat_change(self.path, plan)

    async def change_one(
        self,
        metastore: Metastore,
        document: Document[F],
        change: Callable[[F], F],
        unreadable: Callable[[CodecError], F] | None = None,
    ) -> F:
        """`change` of one document; see `changed_one`."""
        values = (await self.change(metastore, changed_one(document, change, unreadable))).values
        return values[document]

    # -- reading --------------------------------------------------------------------------------------

    async def _find(self, metastore: Metastore) -> _Found:
        joined = await metastore.get(self.path)
        if joined is None:
            found = {one.path: await metastore.get(one.path) for one in self.documents}
            if not any(one is not None and one.value == self._marker for one in found.values()):
                return self._apart(found)
            joined = await metastore.get(self.path)  # they were joined while they were read
            if joined is None:
                return self._apart(found)  # somebody removed it: nothing is known, and the markers say so
        return _Found(joined.version, {}, self.decode(joined.value))

    def _apart(self, found: Mapping[str, Versioned | None]) -> _Found:
        there = {path: one for path, one in found.items() if one is not None}
        parts = {path: (path, one.value) for path, one in there.items()}
        return _Found(None, {path: one.version for path, one in there.items()}, self._values(parts))

    def decode(self, value: bytes) -> JoinedValues:
        """The values in a joined document. Raises CodecError."""
        try:
            rows = msgspec.json.decode(value, type=dict[str, msgspec.Raw])
            version = msgspec.json.decode(rows.pop("v", msgspec.Raw(b"null")))
        except (ValueError, RecursionError) as error:
            raise CodecError(f"{self.path} in the metastore is not a joined document: {error}") from error
        if type(version) is not int or version != FORM_VERSION:
            raise CodecError(
                f"{self.path} in the metastore is of version {version!r:.80}, this program reads {FORM_VERSION}"
            )
        if unknown := sorted(rows.keys() - self._documents.keys()):
            raise CodecError(f"{self.path} in the metastore has unknown fields {', '.join(unknown)[:200]}")
        return self._values(
            {self._documents[name].path: (f"{self.path}, {name}", bytes(row)) for name, row in rows.items()}
        )

    def _values(self, found: Mapping[str, tuple[str, bytes]]) -> JoinedValues:
        """By former path: where a document is, and its bytes."""
        parts = {}
        for name, document in self._documents.items():
            place, data = found.get(document.path, (f"{self.path}, {name}", None))
            try:
                value = document.decode(None if data is None else Versioned(data, 0))
            except CodecError as error:
                parts[document.path] = _Part(place, data, None, CodecError(f"{place} in the metastore: {error}"))
            else:
                parts[document.path] = _Part(place, data, value)
        return JoinedValues(parts)

    # -- writing --------------------------------------------------------------------------------------

    async def _writes(
        self, metastore: Metastore, found: _Found, after: JoinedValues, changed: Collection[str]
    ) -> tuple[list[ConditionalWrite], list[Precondition]]:
        if found.version is not None:
            return [ConditionalWrite(self.path, self.encode(after), found.version)], []
        joined = self._joinable(after)
        if joined is not None and await metastore.all_read_joined():
            moved = (ConditionalWrite(one.path, self._marker, found.former.get(one.path)) for one in self.documents)
            return [ConditionalWrite(self.path, joined, None), *moved], []
        writes, unmoved = [], []
        for document in self.documents:
            version, data = found.former.get(document.path), after.data(document)
            if document.path in changed:
                assert data, "a value that says nothing is never the result of a change"
                writes.append(ConditionalWrite(document.path, data, version))
            elif version is not None:
                unmoved.append(Precondition(document.path, version))
        return writes, unmoved

    def _joinable(self, values: JoinedValues) -> bytes | None:
        """The joined document, None if a document cannot be decoded or all are too large for one value."""
        if any(values.error(one) for one in self.documents):
            return None
        try:
            joined = self.encode(values)
        except CodecError:
            return None
        return joined if len(joined) <= RECORD_BYTES_MAX else None

    def encode(self, values: JoinedValues) -> bytes:
        """A joined document without spaces. Raises CodecError for bytes that are not JSON, such as NaN."""
        rows: dict[str, Any] = {"v": FORM_VERSION}
        for name, document in self._documents.items():
            data = values.data(document)
            if not data or (not values.error(document) and data == document.encode(document.decode(None))):
                continue
            try:
                rows[name] = msgspec.Raw(msgspec.json.format(data, indent=-1))
            except (ValueError, RecursionError) as error:
                raise CodecError(f"{name} cannot be written to {self.path}: {error}") from error
        return msgspec.json.encode(rows)


def changed_one(
    document: Document[F], change: Callable[[F], F], unreadable: Callable[[CodecError], F] | None = None
) -> Callable[[JoinedValues], JoinedValues]:
    """A change of one document. `unreadable` returns the value to start from where it cannot be decoded, and may raise;
    None: the CodecError is raised."""

    def changed(values: JoinedValues) -> JoinedValues:
        try:
            before = values[document]
        except CodecError as error:
            if unreadable is None:
                raise
            before = unreadable(error)
        return values.replaced(document, change(before))

    return changed


# -- following ----------------------------------------------------------------------------------------


class WatchedPart(Generic[F]):
    """One document of a `WatchedJoinedDocument`, as this node read it last."""

    def __init__(self, value: F) -> None:
        self.value = value
        self.was_read = False
        """False until the first successful read."""
        self.error = ""
        """Why the newest one cannot be decoded, while `value` is older; "" if it can."""
        self.place = ""
        """Where the newest one is, once it was read."""


class WatchedJoinedDocument:
    """The documents of a `JoinedDocument` as this node read them last. Belongs to the event loop.

    A document that cannot be decoded leaves its value as it was; a joined document that is damaged as a whole leaves
    all. An error is logged once, until it changes or the document can be decoded again.
    """

    def __init__(
        self,
        metastore: Metastore,
        document: JoinedDocument,
        events: DocumentEvents,
        placeholders: Iterable[tuple[Document[Any], Any]] = (),
        on_read: Callable[[], None] = lambda: None,
    ) -> None:
        """Until its first read each of `placeholders` has the value beside it, and any other document that of one that
        does not exist. `on_read` is called after each read, also of what cannot be decoded, and after each change."""
        self._metastore = metastore
        self._document = document
        self._events = events
        self._on_read = on_read
        nothing, given = document.nothing_set(), {one.path: value for one, value in placeholders}
        self._parts: dict[str, WatchedPart[Any]] = {
            one.path: WatchedPart(given.get(one.path, nothing[one])) for one in document.documents
        }
        self._values = WatchedValue(metastore, document, nothing, events, self._adopt, self._all_unreadable)
        self.expire, self.refresh = self._values.expire, self._values.refresh
        self.start, self.stop = self._values.start, self._values.stop

    def part(self, document: Document[F]) -> WatchedPart[F]:
        """One of the documents."""
        return self._parts[document.path]

    def unread(self) -> dict[str, str]:
        """The documents whose newest value cannot be decoded, by the last name of their former paths: where they
        are."""
        return {path.rpartition("/")[2]: part.place for path, part in self._parts.items() if part.error}

    async def change(self, change: Callable[[JoinedValues], JoinedValues]) -> JoinedValues:
        """See `JoinedDocument.change`; the new values count here at once."""
        result = await self._document.change(self._metastore, change)
        self._values.changed_here(result.values)
        return result.values

    def _adopt(self, values: JoinedValues) -> None:
        for document in self._document.documents:
            part, error = self._parts[document.path], values.error(document)
            if not error:
                part.value, part.was_read = values[document], True
            elif error != part.error:
                log.error(self._events.unreadable, path=values.place(document), error=error)
            part.error, part.place = error, values.place(document)
        self._on_read()

    def _all_unreadable(self, error: str) -> None:
        for part in self._parts.values():
            part.error, part.place = error, self._document.path
        self._on_read()
