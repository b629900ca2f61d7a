"""Removes secrets from texts that leave the cluster: tokens, private keys, passwords in addresses.

Known secrets are removed wherever they stand, others by their form. A false find costs a word of a log line; a secret
that is left costs more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

MASK: Final = "***"

KNOWN_MIN: Final = 8
"""Shortest text that counts as a known secret: a shorter one would stand in ordinary words."""

_PRIVATE_KEY: Final = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
)
_BEARER: Final = re.compile(r"(?i)\b(bearer|basic)(\s+|%20)[A-Za-z0-9._~+/=-]{8,}")
_NAMED: Final = re.compile(
    r"""(?i)(["']?[\w.-]{0,40}?(?:token|password|passwd|secret|authorization|api[_-]?key)["']?\s*[:=]\s*)"""
    r"""("(?:[^"\\]|\\.)*"|'[^']*'|[^\s,;}\]]+)"""
)
_USER_INFO: Final = re.compile(r"(?i)\b([a-z][a-z0-9+.-]{0,20}://)[^/\s@\"']{1,200}@")
_PATH: Final = re.compile(r"""["']?(/|[A-Za-z]:\\|\.{0,2}/)[^"']*["']?\Z""")


class Redactor:
    """Removes `known` secrets and what looks like one."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        words = sorted({each for each in known if len(each) >= KNOWN_MIN}, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, words))) if words else None

    def clean(self, text: str) -> str:
        """The text with MASK in place of each secret."""
        if self._known is not None:
            text = self._known.sub(MASK, text)
        text = _PRIVATE_KEY.sub(MASK, text)
        text = _BEARER.sub(rf"\1 {MASK}", text)
        text = _USER_INFO.sub(rf"\1{MASK}@", text)
        return _NAMED.sub(_masked, text)


def _masked(found: re.Match[str]) -> str:
    """A named secret without its value. The path of a file is none, nor is an empty value or null."""
    name, value = found[1], found[2]
    if _PATH.match(value) or value.strip("\"'").lower() in ("", "null", "none", "true", "false", MASK):
        return found[0]
    quote = value[0] if value[0] in "\"'" else ""
    return f"{name}{quote}{MASK}{quote}"
