"""Errors have code, sentence and status, and can be copied, as process pools do to send them."""

from __future__ import annotations

import copy
from datetime import UTC, datetime

import pytest

from isthmus.client import errors
from isthmus.client.objects import Context, NotFound, Sibling, Siblings, StoredObject

SIBLING = Sibling(b"1", "application/json", "v", datetime(2026, 1, 1, tzinfo=UTC))
OBJECT = StoredObject("default", "b", "k", Context(b"c"), "e", (SIBLING, SIBLING))


@pytest.mark.parametrize(
    "error",
    [
        errors.Retryable("a sentence", reason="code", status=503),
        errors.OutcomeUnknown("a sentence", reason="code", status=504, request_id="id"),
        errors.BadRequest("a sentence", reason="code"),
        NotFound("a sentence", context=Context(b"c")),
        Siblings(OBJECT),
        errors.BatchFailed([None, errors.Refused("a sentence", reason="code", status=403)]),
    ],
)
def test_errors_can_be_copied(error: errors.ClientError) -> None:
    """A copy has all attributes."""
    copied = copy.copy(error)
    assert type(copied) is type(error)
    assert str(copied) == str(error) == f"{error.reason}: {error.message}"
    assert copied.status == error.status
    assert copied.__dict__.keys() == error.__dict__.keys()


def test_errors_are_of_the_kinds_that_python_has() -> None:
    """`except LookupError` and `except ValueError` see a missing key and a wrong call."""
    assert issubclass(NotFound, LookupError)
    assert issubclass(errors.BadRequest, ValueError)
    assert all(issubclass(kind, errors.ClientError) for kind in (NotFound, Siblings, errors.ServerFault))
