"""Objects with their siblings, contexts, results of writes, and items of batches, as callers see them.

The errors `Siblings` and `NotFound` are here, since they carry an object or a context.
"""

from __future__ import annotations

import inspect
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeAlias

from isthmus.client.errors import BadRequest, ClientError
from isthmus.client.values import Codecs, decode_value

Name: TypeAlias = str | bytes
"""A bucket or key. Text is UTF-8; a name that is other bytes is returned as text with surrogate escapes
(`os.fsencode` turns it into the bytes), and may be passed back as such."""

SHOWN_CHARACTERS_MAX: Final = 100
"""Longest name in a message; a name may have thousands of bytes."""


def shown(bucket: str, key: str) -> str:
    """A key for messages: printable whatever its bytes, and short."""
    text = f"{bucket}/{key}"
    if not text.isprintable():
        text = ascii(text)[1:-1]
    return text if len(text) <= SHOWN_CHARACTERS_MAX else text[:SHOWN_CHARACTERS_MAX] + "..."


@dataclass(frozen=True, slots=True)
class Context:
    """The version of a key that somebody has read: a write with it replaces exactly that version.

    Opaque; it names no key and grants nothing. `str()` gives text for a form or another process, `from_text` reads
    it."""

    vclock: bytes

    def __str__(self) -> str:
        return b64encode(self.vclock).decode()

    def __repr__(self) -> str:
        return f"Context.from_text({str(self)!r})"

    @classmethod
    def from_text(cls, text: str) -> Context:
        """The context of a text that `str()` gave. Raises BadRequest."""
        try:
            return cls(b64decode(text, validate=True))
        except ValueError as error:
            raise BadRequest(f"this is not the text of a context: {error}", reason="bad-vclock") from error


class Link(NamedTuple):
    """A link to another key of the same bucket type."""

    bucket: str
    key: str
    tag: str


@dataclass(frozen=True, slots=True)
class Sibling:
    """One version of an object. An object without conflict has exactly one."""

    body: bytes = field(repr=False)
    """The stored bytes; empty for a deletion."""
    content_type: str
    vtag: str
    """Names this version, on all clusters."""
    last_modified: datetime
    deleted: bool = False
    """A concurrent deletion."""
    content_encoding: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    indexes: tuple[tuple[str, str], ...] = ()
    links: tuple[Link, ...] = ()
    codecs: Codecs = field(default_factory=dict, repr=False, compare=False)

    @property
    def value(self) -> Any:
        """The value by content type: JSON as dict, list and so on, text as str, all others as bytes; bytes also for a
        value with a content encoding; None for a deletion. Raises BadRequest when the bytes are not of their content
        type."""
        if self.deleted:
            return None
        return self.body if self.content_encoding else decode_value(self.body, self.content_type, self.codecs)


Resolver: TypeAlias = Callable[[Sequence[Sibling]], Any]
"""Chooses or merges the versions of an object: returns one of the siblings, or a new value. May be a coroutine
function only in `update` of an AsyncClient."""


def refuse_awaitable(result: object, what: str, instead: str) -> None:
    """Raise BadRequest for what a coroutine function returned where nothing awaits it."""
    if not inspect.isawaitable(result):
        return
    if inspect.iscoroutine(result):
        result.close()  # else Python warns that it was never awaited
    raise BadRequest(f"{what} is a coroutine function, which is not possible here: {instead}", reason="bad-call")


def newest(siblings: Sequence[Sibling]) -> Sibling:
    """A resolver: the version with the latest time; a value before a deletion. The others are lost, as with
    last_write_wins. Between two with the same time, the later one in the list is taken, which is the same for every
    client."""
    return max(reversed(siblings), key=lambda sibling: (not sibling.deleted, sibling.last_modified))


@dataclass(frozen=True, slots=True)
class StoredObject:
    """A key as it was read."""

    bucket_type: str
    bucket: str
    key: str
    context: Context
    etag: str
    """Names the only version, on all clusters; "" with siblings."""
    siblings: tuple[Sibling, ...]
    resolver: Resolver | None = field(default=None, repr=False, compare=False)

    @property
    def in_conflict(self) -> bool:
        """True with several siblings."""
        return len(self.siblings) > 1

    @property
    def content(self) -> Sibling:
        """The only version. Raises Siblings if there are several."""
        if len(self.siblings) > 1:
            raise Siblings(self)
        return self.siblings[0]

    @property
    def value(self) -> Any:
        """The value of the only version; of several versions what the resolver makes of them. Raises Siblings when
        there is none, BadRequest for a resolver that is a coroutine function."""
        if len(self.siblings) > 1 and self.resolver is not None:
            resolved = self.resolver(self.siblings)
            refuse_awaitable(resolved, "the resolver", "`value` cannot wait: `update` of an AsyncClient can")
            return resolved.value if isinstance(resolved, Sibling) else resolved
        return self.content.value

    @property
    def body(self) -> bytes:
        """The bytes of the only version. Raises Siblings."""
        return self.content.body

    @property
    def content_type(self) -> str:
        """The content type of the only version. Raises Siblings."""
        return self.content.content_type

    @property
    def metadata(self) -> Mapping[str, str]:
        """The metadata of the only version. Raises Siblings."""
        return self.content.metadata

    @property
    def last_modified(self) -> datetime:
        """When the newest version was written, by the clock of the node that wrote it."""
        return max(sibling.last_modified for sibling in self.siblings)


class Siblings(ClientError):
    """An object has several concurrent versions, `object.siblings`, and no resolver was given."""

    def __init__(self, found: StoredObject) -> None:
        message = (
            f"{shown(found.bucket, found.key)} has {len(found.siblings)} concurrent versions: give a resolver "
            "(resolve=), or choose one and write it with the object as context"
        )
        super().__init__(message, reason="siblings", status=300)
        self.object = found


class NotFound(ClientError, LookupError):
    """The key does not exist. `context` is that of its deletion, None if it is not known to have existed."""

    def __init__(
        self,
        message: str,
        *,
        reason: str = "not-found",
        context: Context | None = None,
        names: tuple[str, str, str] | None = None,
    ) -> None:
        """`names`: bucket type, bucket and key, where they are known."""
        super().__init__(message, reason=reason, status=404)
        self.context = context
        self.names = names


@dataclass(frozen=True, slots=True)
class Written:
    """The result of a write."""

    bucket_type: str
    bucket: str
    key: str
    context: Context | None
    """For the next write of the same key: a single writer need not read in between. None when a repeated write's key
    has been deleted and forgotten meanwhile."""
    repeated: bool
    """The write had taken effect before: an earlier attempt, or an earlier call with the same request id."""


HasContext: TypeAlias = Context | StoredObject | Written | NotFound | None
"""The values that a write accepts as context."""


def context_of(given: HasContext, key: tuple[bytes, bytes, bytes]) -> Context | None:
    """The context in what a caller passed for a write of `key` (bucket type, bucket, key).

    Raises BadRequest, also for what is known to be of another key: its context may cover versions of this one that the
    caller has never read, and they would be replaced."""
    if given is None or isinstance(given, Context):
        return given
    if not isinstance(given, StoredObject | Written | NotFound):
        raise BadRequest(
            f"context is a {type(given).__name__}: pass a Context, or the object, result or NotFound that has one",
            reason="bad-vclock",
        )
    names = given.names if isinstance(given, NotFound) else (given.bucket_type, given.bucket, given.key)
    if names is not None and tuple(name.encode("utf-8", "surrogateescape") for name in names) != key:
        raise BadRequest(
            f"context is of another key, {shown(f'{names[0]}/{names[1]}', names[2])}: pass that of the key to write",
            reason="bad-vclock",
        )
    return given.context


@dataclass(frozen=True, slots=True)
class Put:
    """An item of `put_many`: a value for a key."""

    key: Name
    value: Any
    context: HasContext = None
    content_type: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """An item of `put_many`: the deletion of a key. Without context what is there at that moment is deleted."""

    key: Name
    context: HasContext = None
    request_id: str | None = None
