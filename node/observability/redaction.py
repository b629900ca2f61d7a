"""Removal of secrets from texts that leave the cluster.

Secrets are tokens, private keys and passwords.
Known secrets are removed wherever they are, others by their form. A false find costs a word of a log line; a secret
that is left costs more. Documents are cleaned value by value, so that they stay documents; so are texts that are JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, Final

MASK: Final = "***"

KNOWN_MIN: Final = 8
"""Shortest text that counts as a known secret: a shorter one would be part of ordinary words."""

_WORDS: Final = (
    r"(?:token|password|passwd|passphrase|secret|credential|authorization|cookie|(?:api|access|secret|private)[_-]?key)"
)
_ANY: Final = re.compile(rf"(?i){_WORDS}")
"""Most texts have none of the words, and are looked at once."""
_NAME: Final = re.compile(rf"(?i){_WORDS}(?P<many>s?)(?P<file>[_-]?files?)?\Z")

_QUOTED: Final = r"""(?P<escape>\\*)(?P<quote>["'])(?:.*?(?<!\\)(?P=escape)(?P=quote)|.*)"""
"""Up to the quote that is escaped as the first one is, so that JSON within JSON ends where it does; or all of a line
that was cut."""
_BARE: Final = r"""\S+?(?=[,;)}\]"'\\]*(?:\s|\Z))"""
_LIST: Final = r"\[[^\]]*\]?"

_PRIVATE_KEY: Final = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
)
_SCHEME: Final = re.compile(r"(?i)\b(bearer|basic)(\s+|%20)[A-Za-z0-9._~+/=-]{8,}")
_HEADER: Final = re.compile(
    r"""(?i)(?P<name>(?:authorization|cookie)(?P<many>)(?P<file>)(?:\\*["']\s*,\s*b?|\\*["']?\s*[:=]\s*b?))"""
    rf"(?P<value>{_QUOTED}|.+)"
)
_NAMED: Final = re.compile(
    rf"""(?i)(?P<name>{_WORDS}(?P<many>s?)(?P<file>[_-]?files?)?\\*["']?\s*[:=]\s*)"""
    rf"(?P<value>{_QUOTED}|{_LIST}|{_BARE})"
)
_OPTION: Final = re.compile(
    rf"""(?i)(?P<name>--[\w-]{{0,40}}?{_WORDS}(?P<many>s?)(?P<file>[_-]?files?)?(?:\\*["'])?,?\s+)"""
    rf"(?P<value>(?!--){_QUOTED}|(?!--){_BARE})"
)
_USER_INFO: Final = re.compile(r"(?i)\b([a-z][a-z0-9+.-]{0,20}://)[^/\s@\"']{1,200}@")
_PATH: Final = re.compile(r"(/|[A-Za-z]:\\|\.{1,2}/)")
_EMPTY: Final = ("", "null", "none", "true", "false", MASK, "[]", f"[{MASK}]")


class Redactor:
    """Removes `known` secrets and what looks like one."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        words = sorted({each for each in known if len(each) >= KNOWN_MIN}, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, words))) if words else None

    def without_known(self, text: str) -> str:
        """The text with MASK in place of each known secret; its form is not looked at."""
        return text if self._known is None else self._known.sub(MASK, text)

    def clean(self, text: str) -> str:
        """The text with MASK in place of each secret."""
        text = self.without_known(text)
        if text[:1] in ("{", "["):
            try:
                found = json.loads(text)
                cleaned = self.document(found)
            except (ValueError, RecursionError):
                pass
            else:
                return text if cleaned == found else json.dumps(cleaned, ensure_ascii=False)
        text = _PRIVATE_KEY.sub(MASK, text)
        if _ANY.search(text):
            text = _HEADER.sub(_masked, text)
            text = _OPTION.sub(_masked, text)
            text = _NAMED.sub(_masked, text)
        text = _SCHEME.sub(rf"\1 {MASK}", text)
        return _USER_INFO.sub(rf"\1{MASK}@", text) if "@" in text else text

    def document(self, value: Any, name: str = "") -> Any:
        """A JSON document, the value of `name`, with MASK in place of each secret. Keys that are no text, as documents
        in memory may have, are kept. Raises RecursionError."""
        if isinstance(value, dict):
            return {
                self.clean(key) if isinstance(key, str) and " " in key else key: self.document(each, str(key))
                for key, each in value.items()
            }
        if isinstance(value, list):
            if len(value) == 2 and isinstance(value[0], str) and _NAME.search(value[0]):
                name = value[0]
                return [name, self.document(value[1], name)]
            return [self.document(each, name) for each in value]
        if isinstance(value, str):
            return MASK if _is_secret(name, value) else self.clean(value)
        return MASK if type(value) in (int, float) and _is_secret(name, str(value)) else value


def _is_secret(name: str, value: str) -> bool:
    found = _NAME.search(name)
    return found is not None and _needs_mask(found, value)


def _needs_mask(found: re.Match[str], value: str) -> bool:
    """Whether the value of a name is a secret. A path under the name of a file is none, nor is a count of secrets, an
    empty value or null."""
    if found["file"] and _PATH.match(value):
        return False
    return value.lower() not in _EMPTY and not (found["many"] and value.isdecimal() and len(value) < KNOWN_MIN)


def _masked(found: re.Match[str]) -> str:
    """A named secret without its value."""
    name, value, quote = found["name"], found["value"], found["quote"]
    if quote is None:
        return f"{name}{MASK}" if _needs_mask(found, value) else found[0]
    quote = f"{found['escape']}{quote}"
    inner = value[len(quote) :]
    closed = inner.endswith(quote)
    inner = inner.removesuffix(quote)
    return f"{name}{quote}{MASK}{quote if closed else ''}" if _needs_mask(found, inner) else found[0]
