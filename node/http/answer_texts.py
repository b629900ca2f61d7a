"""Sentences of admin answers that readers recognise.

Imports nothing but the standard library: a command starts without the server's modules.
"""

from __future__ import annotations

import re
from typing import Final

_LINKS_FAIL: Final = re.compile(r"\d+ of \d+ links? fails?: ")
"""How `sink.service.Sink.failing` begins."""

_AGE: Final = re.compile(r", as it answered \d+ s ago\Z")


def silent_sentence(node: str) -> str:
    """The warning about a node whose session is alive and that did not answer."""
    return f"node {node} lives by its session and did not answer this node: it may be frozen, overloaded or cut off"


def links_sentence(node: str, why: str) -> str:
    """The warning of `node` about its links to other clusters."""
    return f"to other clusters, at node {node}: {why}"


def is_of_failing_links(sentence: str, node: str) -> bool:
    """Whether a warning is that of `node` about its failing links."""
    before = links_sentence(node, "")
    return sentence.startswith(before) and _LINKS_FAIL.match(sentence, len(before)) is not None


def without_age(reason: str) -> str:
    """The reason of a link without the age of its last answer (`sink.status`), which differs between links of one
    cause."""
    return _AGE.sub("", reason)
