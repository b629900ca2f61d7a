"""Answers of a node as results and errors. Pure.

docs/http.md has the forms of answers. An answer of any other form is a ServerFault.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import msgpack

from isthmus.client.errors import BadRequest, ClientError, Conflict, Refused, Retryable, ServerFault
from isthmus.client.names import Key, name_text
from isthmus.client.objects import Context, Link, NotFound, Resolver, Sibling, StoredObject, Written, shown
from isthmus.client.steps import Response
from isthmus.client.values import Codecs

MESSAGE_CHARACTERS_MAX: Final = 2_000
"""Longest sentence of a refusal that is kept."""

ADMIN_LISTENER: Final = (
    "the path is unknown there: this seems to be a node's admin listener; give the URL of its client listener, "
    "listen.http"
)
"""What is wrong where a path is refused in JSON, which client listeners use for refusals only when they are asked."""

META: Final = "x-riak-meta-"
INDEX: Final = "x-riak-index-"

_LINK: Final = re.compile(r'</buckets/([^/>]*)/keys/([^/>]*)>; riaktag="([^"]*)"')


class Verdict(Enum):
    """The result of an attempt, by its answer."""

    DONE = "done"
    LATER = "later"
    """Definitely nothing took effect; try again."""
    UNCERTAIN = "uncertain"
    """A write may have taken effect; a read is repeated."""
    FINAL = "final"
    """No repetition helps."""


def judge(response: Response) -> Verdict:
    """The verdict on an answer."""
    status = response.status
    if 200 <= status < 300 or status in (300, 304):
        return Verdict.DONE
    if status == 404 and response.headers.get("x-isthmus-reason") == "not-found":
        return Verdict.DONE
    if status == 503 or status == 408 or (status == 400 and reason_of(response) == "cut-short"):
        return Verdict.LATER
    return Verdict.UNCERTAIN if status in (500, 502, 504) else Verdict.FINAL


def reason_of(response: Response) -> str:
    """The code of a refusal."""
    return response.headers.get("x-isthmus-reason", "")


def error_of(response: Response) -> ClientError:
    """A refusal as an error."""
    status, reason = response.status, reason_of(response)
    return refusal(status, reason, _sentence(response))


def refusal(status: int, reason: str, sentence: str) -> ClientError:
    """The error for a status and the code and sentence of a node."""
    if not reason:
        return ServerFault(f"{sentence}; is this the client listener of a node?", reason="not-a-node", status=status)
    if status in (408, 503) or reason == "cut-short":
        return Retryable(sentence, reason=reason, status=status)
    if status >= 500 and status != 501:
        return ServerFault(sentence, reason=reason, status=status)
    if status in (401, 403):
        return Refused(sentence, reason=reason, status=status)
    if status == 412 or (status == 409 and reason == "modified"):
        return Conflict(sentence, reason=reason, status=status)
    if status == 404 and reason == "not-found":
        return NotFound(sentence)
    return BadRequest(sentence, reason=reason, status=status)


def _sentence(response: Response) -> str:
    text = response.body[: 4 * MESSAGE_CHARACTERS_MAX].decode("utf-8", "replace").strip()
    if response.headers.get("content-type", "").startswith("application/json"):
        if reason_of(response) == "unknown-path":
            return ADMIN_LISTENER
        text = _error_in_json(text)
    text = "".join(sign if sign.isprintable() else " " for sign in text)[:MESSAGE_CHARACTERS_MAX]
    return text or f"the answer is {response.status}"


def _error_in_json(text: str) -> str:
    """The sentence in a refusal in JSON; the text itself for another one."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text
    sentence = found.get("error") if isinstance(found, dict) else None
    return sentence if isinstance(sentence, str) else text


def not_found(key: Key, context: Context | None) -> NotFound:
    """The error for a key that does not exist; `context` is that of its deletion."""
    deleted = " (it was deleted)" if context else ""
    names = name_text(key.bucket_type), name_text(key.bucket), name_text(key.key)
    return NotFound(f"{shown(*names[1:])} does not exist{deleted}", context=context, names=names)


def clock_of(response: Response) -> Context | None:
    """The context of an answer that need not have one. Raises ServerFault."""
    clock = response.headers.get("x-riak-vclock")
    return None if clock is None else parse_context(clock)


def parse_context(text: str | None) -> Context:
    """The context in an X-Riak-Vclock. Raises ServerFault."""
    if not text:
        raise _not_understood("X-Riak-Vclock is missing")
    try:
        return Context(b64decode(text.encode("ascii"), validate=True))
    except ValueError as error:
        raise _not_understood(f"X-Riak-Vclock is not base64: {error}") from error


def parse_written(key: Key, response: Response) -> Written:
    """The answer to a write. Raises ServerFault."""
    repeated = response.headers.get("x-isthmus-repeated") == "true"
    context = clock_of(response)
    if context is None and not repeated:
        raise _not_understood("a write was answered without X-Riak-Vclock")
    return written(key, context, repeated)


def written(key: Key, context: Context | None, repeated: bool) -> Written:
    """The result of a write."""
    return Written(name_text(key.bucket_type), name_text(key.bucket), name_text(key.key), context, repeated)


def parse_object(key: Key, response: Response, codecs: Codecs, resolver: Resolver | None) -> StoredObject:
    """The object in the answer to a GET of one version. Raises ServerFault."""
    headers = response.headers
    return StoredObject(
        name_text(key.bucket_type),
        name_text(key.bucket),
        name_text(key.key),
        parse_context(headers.get("x-riak-vclock")),
        headers.get("etag", "").strip('"'),
        (_sibling(headers, response.body, codecs),),
        resolver,
    )


def header_text(raw: bytes) -> str:
    """The text of a header; `name_bytes` and the headers of a request turn it into the same bytes."""
    return raw.decode("utf-8", "surrogateescape")


def _sibling(headers: Mapping[str, str], body: bytes, codecs: Codecs) -> Sibling:
    indexes: list[tuple[str, str]] = []
    metadata: dict[str, str] = {}
    for name, value in headers.items():
        if name.startswith(META):
            metadata[name[len(META) :]] = value
        elif name.startswith(INDEX):
            indexes += [(name[len(INDEX) :], each.strip()) for each in value.split(",")]
    try:
        modified = parsedate_to_datetime(headers["last-modified"])
    except (KeyError, ValueError, TypeError, IndexError, OverflowError) as error:
        raise _not_understood("Last-Modified is missing, or no date") from error
    return Sibling(
        body,
        headers.get("content-type", "application/octet-stream"),
        headers.get("etag", "").strip('"'),
        modified.replace(tzinfo=UTC) if modified.tzinfo is None else modified,
        headers.get("x-riak-deleted") == "true",
        headers.get("content-encoding", ""),
        metadata,
        tuple(indexes),
        tuple(
            Link(*(name_text(unquote_to_bytes(part)) for part in found))
            for found in _LINK.findall(headers.get("link", ""))
        ),
        codecs,
    )


def parse_batch(response: Response, count: int) -> list[Sequence[Any]]:
    """The answers to the items of a batch: (status, vclock, rest) each. Raises ServerFault."""
    try:
        answers = msgpack.unpackb(response.body, raw=True, strict_map_key=False)
        if not isinstance(answers, list) or len(answers) != count:
            raise ValueError(f"no list of {count} answers")
        for status, clock, _ in answers:
            if not isinstance(status, int) or not isinstance(clock, bytes | None):
                raise ValueError("an answer that has no status or no vclock")
        return answers
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException) as error:
        raise _not_understood(f"not the answer to a batch: {error or type(error).__name__}") from error


def item_refusal(status: int, rest: Any) -> ClientError:
    """The error of an item that was refused."""
    reason, _, sentence = (rest.decode("utf-8", "replace") if isinstance(rest, bytes) else "").partition(": ")
    return refusal(status, reason, sentence[:MESSAGE_CHARACTERS_MAX] or reason)


def item_object(key: Key, clock: bytes | None, rest: Any, codecs: Codecs, resolver: Resolver | None) -> StoredObject:
    """The object in the answer to an item of /batch/get. Raises ServerFault."""
    try:
        siblings = tuple(_batch_sibling(codecs, *each) for each in rest)
        if clock is None or not siblings:
            raise ValueError("an object without vclock or versions")
    except (ValueError, TypeError, OverflowError, OSError, AttributeError) as error:
        raise _not_understood(f"not the answer to /batch/get: {error}") from error
    etag = siblings[0].vtag if len(siblings) == 1 else ""
    return StoredObject(
        name_text(key.bucket_type), name_text(key.bucket), name_text(key.key), Context(clock), etag, siblings, resolver
    )


def _batch_sibling(
    codecs: Codecs, value: bytes | None, content_type: bytes, vtag: bytes, modified_ms: int, extras: Any
) -> Sibling:
    encoding, metadata, links, indexes = (b"", (), (), ()) if extras is None else extras
    if not isinstance(value, bytes | None):
        raise ValueError("a value that is not bytes")
    return Sibling(
        value or b"",
        header_text(content_type),
        header_text(vtag),
        datetime.fromtimestamp(modified_ms / 1000, UTC),
        value is None,
        header_text(encoding),
        {header_text(name): header_text(text) for name, text in metadata},
        tuple((header_text(name), header_text(text)) for name, text in indexes),
        tuple(Link(name_text(bucket), name_text(key), name_text(tag)) for bucket, key, tag in links),
        codecs,
    )


def _not_understood(what: str) -> ServerFault:
    return ServerFault(f"the answer is not understood: {what}", reason="bad-answer")
