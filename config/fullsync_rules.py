"""What values of [[fullsync]] may be, and how they go together; `config.rules` has the ranges of numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from config.fullsync import ALL_TYPES
from config.rules import Broken, check_name, check_peer_url, is_own
from config.settings import Settings
from config.texts import shown

URLS_MAX: Final = 32
"""Nodes of another cluster that are listed; one that answers is enough."""

TYPES_MAX: Final = 256
"""Bucket types of one entry."""

_HOURS = re.compile(r"(\d{1,2})-(\d{1,2})", re.ASCII)


def check_urls(value: str) -> str:
    """URL,URL,..., each once; ValueError otherwise."""
    urls = [check_peer_url(url.strip()) for url in value.split(",")]
    if len(set(urls)) != len(urls) or len(urls) > URLS_MAX:
        raise ValueError(f"{shown(value)}: list each of 1 to {URLS_MAX} nodes once")
    return ",".join(urls)


def check_types(value: str) -> str:
    """NAME,NAME,..., each once, or "*" for all; ValueError otherwise."""
    if value.strip() == ALL_TYPES:
        return ALL_TYPES
    names = [check_name(name.strip()) for name in value.split(",")]
    if len(set(names)) != len(names) or len(names) > TYPES_MAX:
        raise ValueError(f"{shown(value)}: list each of 1 to {TYPES_MAX} bucket types once")
    return ",".join(names)


def check_window(value: str) -> str:
    """FIRST-END in hours, "always" or "never"; ValueError otherwise."""
    found = _HOURS.fullmatch(value)
    hours = found is not None and int(found[1]) < 24 and int(found[2]) <= 24
    if not hours and value not in ("always", "never"):
        raise ValueError(f'{shown(value)}: write hours such as "22-6" (from 22:00 until 6:00 UTC), "always" or "never"')
    return value


def broken_fullsync(settings: Settings) -> Iterator[Broken]:
    """Every relation of [[fullsync]] that does not hold."""
    first: dict[str, int] = {}
    for number, peer in enumerate(settings.fullsync):
        path = f"fullsync[{number}]"
        if peer.name in first:
            yield Broken(
                (f"{path}.name", f"fullsync[{first[peer.name]}].name"),
                f'two full-syncs are called "{peer.name}"; each needs a name of its own',
            )
        first.setdefault(peer.name, number)
        own = settings.listen.http
        for url in peer.urls.split(",") if own.port else ():
            if is_own(url, own):
                yield Broken(
                    (f"{path}.urls", "listen.http"),
                    f"{url} is this node itself; what it is compared with is another cluster",
                )
        if peer.bidirectional and not peer.peer_queue:
            yield Broken(
                (f"{path}.bidirectional", f"{path}.peer_queue"),
                "the other cluster must know which of its queues to repair by; set peer_queue",
            )
