"""Names of buckets and keys in requests: texts, or percent-encoded, since they may be any bytes."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote_to_bytes

from isthmus.node.http.responses import RequestRefused

PERCENT: Final = "percent"

_NO_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2}).{0,2}", re.DOTALL)


def name_bytes(name: str, encoding: str | None) -> bytes:
    """The bytes of a name. Raises RequestRefused for an encoding that is not known, and a % without two hex digits."""
    if encoding is None:
        return name.encode()
    if encoding != PERCENT:
        raise RequestRefused(400, "bad-query", f'encoding: "{PERCENT}", or none for text, not {encoding[:64]!r}')
    if (wrong := _NO_PERCENT.search(name)) is not None:
        raise RequestRefused(400, "bad-percent-encoding", f"{wrong[0]!r} in {name[:64]!r} is not % and two hex digits")
    return unquote_to_bytes(name)
