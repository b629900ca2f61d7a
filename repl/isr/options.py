"""The core's numbers that an operator may set, with their defaults; `config/settings.py` says what each is for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """Of all replicas of a node. `window_entries` bounds what is appended and not applied."""

    window_entries: int = 10_000
    max_time_lag_ms: int = 3_000
    max_record_lag: int = 10_000
    max_near_sync_message_lag: int = 20_000
    far_min_transfer_rounds: int = 2
