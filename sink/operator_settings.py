"""What operators set for the sink: its suspensions, limits and peers, which are one document in the metastore."""

from __future__ import annotations

from typing import Final

from isthmus.repl.metastore.joined_document import JoinedDocument
from isthmus.sink import limits, peers, suspensions

SETTINGS: Final = JoinedDocument(suspensions.SETTINGS_PATH, (suspensions.DOCUMENT, limits.DOCUMENT, peers.DOCUMENT))
