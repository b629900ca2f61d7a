"""Errors of the client, sorted by what the caller must do.

ClientError
├── Retryable        nothing took effect: the same call may succeed later
├── OutcomeUnknown   a write may or may not have taken effect: read, or repeat it with its request id
├── Conflict         the key has changed since it was read: read it again and decide again
├── Siblings         an object has concurrent versions and no resolver: choose one, or merge them
├── NotFound         the key does not exist
├── Refused          the credentials do not suffice: another token or certificate is needed
├── BadRequest       the call itself is wrong: repeating it does not help
├── ServerFault      what answered is no node, or a node with a fault: an operator must look at it
└── BatchFailed      some items of a batch failed: each has one of the errors above
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class ClientError(Exception):
    """Base of all errors of this package.

    `reason` is the code of the server (docs/http.md lists them) or of the client, `message` a sentence, `status` the
    HTTP status, 0 without an answer."""

    def __init__(self, message: str, *, reason: str, status: int = 0) -> None:
        super().__init__(message, reason, status)
        self.message = message
        self.reason = reason
        self.status = status

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle, as pools of processes use it."""
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[ClientError], args: tuple[object, ...], state: dict[str, object]) -> ClientError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class Retryable(ClientError):
    """Nothing took effect, and the client's own attempts are used up. The same call may succeed later."""


class OutcomeUnknown(ClientError):
    """A write may or may not have taken effect.

    The same call with `request_id` takes effect at most once, as long as the cluster remembers the id."""

    def __init__(self, message: str, *, reason: str, status: int = 0, request_id: str = "") -> None:
        super().__init__(message, reason=reason, status=status)
        self.request_id = request_id


class Conflict(ClientError):
    """A condition of a write does not hold: the key has another version than the call names. Nothing was written."""


class Refused(ClientError):
    """The credentials do not suffice (401, 403), or the certificate of a node is not trusted."""


class BadRequest(ClientError, ValueError):
    """The call is wrong: a bad name or value, over a limit, or something that the server does not support."""


def closed() -> BadRequest:
    """The error of a call after `close`."""
    return BadRequest("the client is closed", reason="closed")


class ServerFault(ClientError):
    """The answer is not one of this API, or the node has a fault of its own."""


class BatchFailed(ClientError):
    """Some items of a batch failed.

    `results` has an entry for each item, in order: what the call returns for an item that succeeded, else its error.
    `errors` are those of the items that failed, by position."""

    def __init__(self, results: Sequence[object]) -> None:
        self.results = tuple(results)
        self.errors = {at: result for at, result in enumerate(results) if isinstance(result, ClientError)}
        first = next(iter(self.errors.values()))
        message = f"{len(self.errors)} of {len(self.results)} items failed; the first: {first}"
        super().__init__(message, reason=first.reason, status=first.status)
