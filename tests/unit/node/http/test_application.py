"""Values in the query of a request."""

from __future__ import annotations

import pytest

from isthmus.node.http.application import BodyBudget, Request
from isthmus.node.http.responses import RequestRefused


async def nothing() -> dict[str, object]:
    """No body."""
    return {"type": "http.disconnect"}


def asked(query: str) -> Request:
    """A request with this query."""
    scope = {"type": "http", "method": "GET", "raw_path": b"/", "query_string": query.encode(), "headers": []}
    return Request(scope, nothing, {}, BodyBudget())


@pytest.mark.parametrize(("query", "number"), [("", 7), ("count=1", 1), ("count=0010", 10), ("count=%31", 1)])
def test_a_whole_number_in_bounds_is_taken(query: str, number: int) -> None:
    """Digits, also with leading zeros; without the parameter, the default."""
    assert asked(query).number("count", 7, 1, 10) == number


@pytest.mark.parametrize("text", ["", "0", "11", "-1", "1.0", "x", "\u0661", "1" * 400, "0" * 17 + "199999"])
def test_anything_else_is_refused(text: str) -> None:
    """The refusal has what was written, cut short, and the bounds; no number of digits passes them."""
    with pytest.raises(RequestRefused, match=r"count=.{0,40}: a whole number from 1 to 10 is right") as refused:
        asked(f"count={text}").number("count", 7, 1, 10)
    assert refused.value.status == 400
