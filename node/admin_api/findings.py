"""GET /admin/findings: what is wrong in this cluster, or not known, judged by `node.services.findings`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from isthmus.node.http.application import Request, json_reply
from isthmus.node.http.responses import Reply
from isthmus.node.http.router import Router
from isthmus.node.services.container import NodeServices
from isthmus.node.services.findings import findings_document
from isthmus.repl.model.errors import IsthmusError, NotReady
from isthmus.repl.unforeseen import unforeseen

FRESH_MS: Final = 1_000
"""How long the answer is given again: six questions to all nodes are asked once for all readers, as many dashboards as
there may be, and no reader sees what is older than a second."""

Document = Callable[[], Awaitable[dict[str, Any]]]
"""Makes one of the documents that are judged."""


class FindingsAdmin:
    """The route, and the round of questions that all its readers share."""

    def __init__(
        self, services: NodeServices, documents: Mapping[str, Document], router: Router[Callable[..., Any]]
    ) -> None:
        """`documents`: by the names of `findings.DOCUMENTS`."""
        self._services = services
        self._documents = documents
        self._round: asyncio.Future[dict[str, Any]] | None = None
        router.add("GET", "/admin/findings", self.findings)

    async def findings(self, _request: Request) -> Reply:
        """Everything that is wrong in the cluster or unknown, the worst first.

        `state` is the worst severity, `ok` without a finding. Each finding has `code` and `subject` for programs,
        `severity` (`critical`, `warning`, `unknown`), and `sentence` and `remedy` for people. The list of `isthmus
        status`, at most a second old.
        """
        return json_reply(await self.document())

    def stop(self) -> None:
        """End a round that is under way."""
        if self._round is not None:
            self._round.cancel()

    async def document(self) -> dict[str, Any]:
        """The answer to `GET /admin/findings`. A reader that leaves ends nobody else's round. Raises NotReady when the
        node stops."""
        current = self._round
        if current is None or (current.done() and self._is_old(current)):
            current = self._round = asyncio.ensure_future(self._judged())
        try:
            return await asyncio.shield(current)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if current.cancelled() and task is not None and not task.cancelling():
                raise NotReady("the node stops") from None  # the round was ended, and not its reader
            raise

    def _is_old(self, ended: asyncio.Future[dict[str, Any]]) -> bool:
        if ended.cancelled() or ended.exception() is not None:
            return True
        return not 0 <= self._services.time.wall_ms() - int(ended.result()["at_ms"]) < FRESH_MS

    async def _judged(self) -> dict[str, Any]:
        services = self._services
        found = await asyncio.gather(*map(_answer_of, self._documents.values()))
        answers = {name: one for name, one in zip(self._documents, found, strict=True) if not isinstance(one, str)}
        errors = {name: one for name, one in zip(self._documents, found, strict=True) if isinstance(one, str)}
        node = services.settings.node
        judged = findings_document(answers, errors)
        return {"cluster": node.cluster, "node": node.name, "at_ms": services.time.wall_ms(), **judged}


async def _answer_of(document: Document) -> dict[str, Any] | str:
    """The document, or why there is none."""
    try:
        return await document()
    except IsthmusError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 -- the findings of the other documents are shown all the same
        return str(unforeseen.exception("findings.document_failed", error))
