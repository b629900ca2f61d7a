"""What every node adds to a support bundle: its values in force, its last log lines, its metrics, what it runs on.

Secrets are removed here, before anything leaves the node (`node.observability.redaction`); the settings hold none.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Final

import msgspec

from isthmus.config.loader import effective
from isthmus.config.settings import Settings
from isthmus.node.observability.logs import LineSink
from isthmus.node.observability.redaction import Redactor
from isthmus.node.observability.version import program_version
from isthmus.node.security.credentials import NodeCredentials
from isthmus.node.services.cluster_query import EmptyBody, JsonBody, Query

METHOD: Final = "support"


class NodeSupport(msgspec.Struct, frozen=True):
    """One node's part of a support bundle."""

    version: str
    python: str
    system: str
    config: list[tuple[str, str, str]]
    """Key path, value in force, where it comes from."""
    log: list[str]
    """The last lines, the oldest first."""
    metrics: str


SUPPORT: Final[Query[None, NodeSupport]] = Query(METHOD, EmptyBody(), JsonBody(METHOD, NodeSupport))


class SupportResponder:
    """Answers SUPPORT for this node. `exposition` is set by the admin API, which has the metrics."""

    def __init__(self, settings: Settings, credentials: NodeCredentials, lines: LineSink) -> None:
        self._settings = settings
        self._credentials = credentials
        self._lines = lines
        self.exposition: Callable[[], bytes] = bytes

    async def respond(self, _request: None) -> NodeSupport:
        """See Responder."""
        redactor = Redactor(self._credentials.secrets())
        return NodeSupport(
            program_version(),
            platform.python_version(),
            f"{platform.system()} {platform.release()} {platform.machine()}",
            [(one.path, redactor.clean(one.text), one.origin) for one in effective(self._settings)],
            [redactor.clean(line) for line in self._lines.last()],
            redactor.clean(self.exposition().decode(errors="replace")),
        )
