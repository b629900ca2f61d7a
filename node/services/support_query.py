"""A node's part of a support bundle: values in force, log lines, metrics.

Secrets are removed here, before anything leaves the node (`node.observability.redaction`); the settings hold none.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Awaitable, Callable
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
    """Answers SUPPORT for this node. Built after the APIs, whose metrics `exposition` has, too."""

    def __init__(
        self,
        settings: Settings,
        credentials: NodeCredentials,
        lines: LineSink,
        exposition: Callable[[], Awaitable[bytes]],
    ) -> None:
        self._settings = settings
        self._credentials = credentials
        self._lines = lines
        self._exposition = exposition

    async def respond(self, _request: None) -> NodeSupport:
        """See Responder. A thread removes the secrets, from what there is now."""
        redactor = Redactor(self._credentials.secrets())
        metrics = await self._exposition()
        return await asyncio.to_thread(_part, self._settings, redactor, self._lines.last(), metrics)


def _part(settings: Settings, redactor: Redactor, lines: list[str], metrics: bytes) -> NodeSupport:
    """The part without secrets. Metrics have names and numbers: known secrets are all that could be among them."""
    return NodeSupport(
        program_version(),
        platform.python_version(),
        f"{platform.system()} {platform.release()} {platform.machine()}",
        [(one.path, redactor.clean(one.text), one.origin) for one in effective(settings)],
        [redactor.clean(line) for line in lines],
        redactor.without_known(metrics.decode(errors="replace")),
    )
