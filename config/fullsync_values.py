"""Values of [[fullsync]] that operators give while the cluster runs, by the rules of a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from isthmus.config.loader import converted
from isthmus.config.schema import keys_of
from isthmus.config.settings import FullSyncSettings

FIXED: Final = frozenset({"name", "token_file"})
"""A name is how operators find it; a token is a file of each node's own."""

WHERE_TO: Final = frozenset({"urls", "cluster"})
"""Where the other cluster is. Of a peer that a file has, it stays as the file has it: its token goes there."""

CHANGEABLE: Final = frozenset(keys_of(FullSyncSettings)) - FIXED
"""Keys whose values operators may give."""


def changed_settings(base: FullSyncSettings, values: Mapping[str, Any]) -> FullSyncSettings:
    """`base` with these values, written as in a file. ValueError says which key is wrong and what would be right."""
    keys = keys_of(FullSyncSettings)
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name not in CHANGEABLE:
            raise ValueError(f"{name!r:.60} is no key that can be set; there are: {', '.join(sorted(CHANGEABLE))}")
        try:
            found[keys[name].field] = converted(keys[name], value, Path())
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    changed = replace(base, **found)
    if changed.bidirectional and not changed.peer_queue:
        raise ValueError("bidirectional: the other cluster must know which of its queues to repair by; set peer_queue")
    return changed
