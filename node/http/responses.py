"""One table of the status for each error. Every refusal is made here.

An answer to a failed request is one line of text with the next step, and the header `X-Isthmus-Reason` with the error's
stable code; in JSON, for operators and for clients that ask for it, `{"error": SENTENCE, "reason": CODE}`. docs/http.md
prints the same table, and a test compares the two.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from isthmus.repl.model.errors import (
    BadConfig,
    BadInput,
    IsthmusError,
    LocalFault,
    OutcomeUnknown,
    PeerFault,
    Retryable,
    StorageShort,
    TooLarge,
)

Headers = list[tuple[bytes, bytes]]

STATUS_BY_CLASS: Final[dict[type[IsthmusError], int]] = {
    TooLarge: 413,
    BadInput: 400,
    Retryable: 503,
    OutcomeUnknown: 504,
    PeerFault: 502,
    StorageShort: 503,
    LocalFault: 500,
    BadConfig: 500,
    IsthmusError: 500,
}
"""Status of an error class; a class without an entry has the status of its nearest base."""

STATUS_BY_REASON: Final[dict[str, int]] = {
    "unknown-bucket-type": 404,
    "unknown-queue": 404,
    "unknown-fullsync": 404,
    "unknown-n-val": 404,
    "unknown": 404,
    "changed": 409,
    "changed-meanwhile": 409,
    "plan-refused": 409,
    "still-needed": 409,
    "owned-by-other": 409,
    "own-cluster": 409,
    "too-many-siblings": 422,
    "too-many-properties": 422,
    "precondition-failed": 412,
    "modified": 409,
}
"""Reasons whose status differs from that of their class."""

RETRY_AFTER_S: Final = 1
"""The Retry-After of a 503. Elections and full windows pass within about a second."""

PLAIN: Final = b"text/plain; charset=utf-8"
JSON: Final = b"application/json"

_REASON: Final = b"x-isthmus-reason"


class Reply(NamedTuple):
    """A whole answer; `headers` without Content-Length, which the sender adds."""

    status: int
    headers: Headers
    body: bytes = b""


class RequestRefused(BadInput):
    """A refusal by the HTTP layer itself, with its own status, reason and headers."""

    def __init__(self, status: int, reason: str, message: str, headers: Headers | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.headers: Headers = headers or []


def _status(kind: type[IsthmusError], reason: str) -> int:
    by_reason = STATUS_BY_REASON.get(reason)
    if by_reason is not None:
        return by_reason
    return next(STATUS_BY_CLASS[base] for base in kind.__mro__ if base in STATUS_BY_CLASS)


def status_of(error: IsthmusError) -> int:
    """The HTTP status that answers `error`."""
    if isinstance(error, RequestRefused):
        return error.status
    return _status(type(error), error.reason)


def explanation(error: IsthmusError) -> str:
    """One line of text; it names an unknown outcome."""
    text = " ".join(str(error).split()) or error.reason
    return f"{text}; outcome=unknown" if isinstance(error, OutcomeUnknown) else text


def refusal(error: IsthmusError) -> Reply:
    """The answer to a request that ended in `error`."""
    status = status_of(error)
    headers: Headers = [(b"content-type", PLAIN), (_REASON, error.reason.encode("ascii"))]
    if isinstance(error, RequestRefused):
        headers += error.headers
    if status == 503:
        headers.append((b"retry-after", b"%d" % RETRY_AFTER_S))
    return Reply(status, headers, f"{explanation(error)}\n".encode(errors="backslashreplace"))


def refusal_in_json(reply: Reply) -> Reply:
    """A refusal that is one line of text, as JSON; any other answer as it is. With the same status and headers."""
    reason = next((value for name, value in reply.headers if name == _REASON), None)
    if reason is None or (b"content-type", PLAIN) not in reply.headers:
        return reply
    body = error_document(reply.body.decode().strip(), reason.decode("ascii"))
    headers = [header for header in reply.headers if header[0] != b"content-type"]
    return Reply(reply.status, [(b"content-type", JSON), *headers], body)


def error_document(sentence: str, reason: str) -> bytes:
    """A refusal in JSON, the same in all answers."""
    return json.dumps({"error": sentence, "reason": reason}).encode() + b"\n"
