"""Values of [[fullsync]] that operators set while the cluster runs, by the rules of a config file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from isthmus.config.schema import settings_of
from isthmus.config.settings import FullSyncSettings

FIXED: Final = frozenset({"name", "token_file"})
"""Keys that cannot be set: the name identifies the entry, and a token file belongs to each node."""

WHERE_TO: Final = frozenset({"urls", "cluster"})
"""Keys of the other cluster's address. For a peer in a file they stay as in the file, since its token is sent there."""

CHANGEABLE: Final = frozenset(settings_of(FullSyncSettings)) - FIXED
"""Keys that operators may set."""


def changed_settings(base: FullSyncSettings, values: Mapping[str, Any]) -> FullSyncSettings:
    """`base` with these values, in the notation of a file. ValueError names the key and what would be right."""
    keys = settings_of(FullSyncSettings)
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name not in CHANGEABLE:
            raise ValueError(f"{name!r:.60} cannot be set; these keys can: {', '.join(sorted(CHANGEABLE))}")
        try:
            found[keys[name].field] = keys[name].form.parse(value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    changed = replace(base, **found)
    if changed.bidirectional and not changed.peer_queue:
        raise ValueError("bidirectional: the other cluster must know which of its queues to repair by; set peer_queue")
    return changed
