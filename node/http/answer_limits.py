"""Limits of answers that the routes and the command line share.

Imports nothing: a command starts without the server's modules.
"""

from __future__ import annotations

from typing import Final

ROWS: Final = 100
"""Acts or events in an answer by default."""

ROWS_MAX: Final = 1_000
"""Most acts or events of one answer: some 400 KB of JSON."""

PAGE_NAMES_MAX: Final = 10_000
"""Largest `limit` of a listing of keys or buckets: a page is answered in a moment, and goes on with a continuation. A
guess, as many as a batch reads by default."""

RETRY_WAIT_S: Final = 60.0
"""How long an operator's program waits for dead letters that are pushed again: each may wait for its source or for a
leader. The dashboard waits as long."""

RETRY_TIMEOUT_MS: Final = 50_000
"""How long another node may take for it, so that its answer comes before RETRY_WAIT_S is over. Letters that are pushed
later are repeated by the next try, which changes nothing."""
