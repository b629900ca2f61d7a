"""The JSON bodies of operators' acts: an object with known keys, each of its type; anything else is told by name."""

from __future__ import annotations

import getpass
import json
import os
from collections.abc import Collection
from typing import Any, Final

from isthmus.node.http.application import Request
from isthmus.node.http.responses import RequestRefused

WORDS_MAX: Final = 1_000
"""Characters of `by` and of `reason`, which stay in records, listings and logs; more than a sentence needs."""


async def read_body(request: Request, keys: Collection[str] | None = None) -> dict[str, Any]:
    """The body's object, each text of which can be encoded; none is an empty one. Keys not among `keys` are refused."""
    wish = await request.json()
    if wish is None:
        return {}
    if not isinstance(wish, dict):
        raise RequestRefused(400, "bad-json", 'the body must be a JSON object, for instance {"reason": "maintenance"}')
    try:
        json.dumps(wish, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError) as error:
        raise RequestRefused(400, "bad-json", f"the body is not JSON: a text in it is no Unicode: {error}") from None
    unknown = sorted(f"{key[:64]!r}" for key in wish.keys() - keys) if keys is not None else []
    if unknown:
        told = f"{', '.join(unknown)} in the body {'is' if len(unknown) == 1 else 'are'} unknown"
        raise RequestRefused(400, "bad-json", f"{told}: {', '.join(sorted(keys or ()))} are right")
    for name in ("by", "reason"):
        if len(text(wish, name) or "") > WORDS_MAX:
            raise RequestRefused(400, "bad-json", f"{name} has {len(wish[name])} characters; {WORDS_MAX} are the most")
    return wish


def acting_user(wish: dict[str, Any]) -> str:
    """Who does it, as they say, or this process's user."""
    return text(wish, "by") or _own_user()


def _own_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have a number and no name
        return f"uid-{os.getuid()}"


def text(wish: dict[str, Any], name: str) -> str | None:
    """A text, or None."""
    value = wish.get(name)
    if value is not None and not isinstance(value, str):
        raise RequestRefused(400, "bad-json", f"{name} must be a text or null")
    return value


def flag(wish: dict[str, Any], name: str) -> bool:
    """True or false; false when it is not there."""
    value = wish.get(name, False)
    if not isinstance(value, bool):
        raise RequestRefused(400, "bad-json", f"{name} must be true or false")
    return value


def count(wish: dict[str, Any], name: str, least: int, most: int) -> int | None:
    """A whole number in a range, or None."""
    value = wish.get(name)
    if value is not None and (type(value) is not int or not least <= value <= most):
        raise RequestRefused(400, "bad-json", f"{name} must be a whole number from {least} to {most}, or null")
    return value
