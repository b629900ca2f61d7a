"""POST /admin/folds: one page of a fold over one partition, from the node that leads it.

The command line asks page after page (`isthmus fold`), so that stopping it stops the fold. Pages are made by
`aae.folds.folds`; their JSON is `aae.folds.fold_rpc`'s.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from isthmus.aae.folds.fold_rpc import page_document, parse_fold_request
from isthmus.aae.folds.folds import ACTS
from isthmus.node.http.application import HttpApplication, Request, json_reply
from isthmus.node.http.json_body import BodyHandler
from isthmus.node.http.responses import Reply, RequestRefused
from isthmus.node.nouns.requests import JsonRequest, right
from isthmus.node.services.container import NodeServices


def _described(**schema: Any) -> msgspec.Meta:
    """The schema of a field that `aae.folds.fold_rpc` checks, with reasons of its own."""
    return msgspec.Meta(extra_json_schema={"type": [*schema.pop("types"), "null"], **schema})


Text = Annotated[Any, _described(types=["string"], minLength=1)]
Number = Annotated[Any, _described(types=["integer"], minimum=0)]


class FoldPageRequest(JsonRequest, frozen=True, kw_only=True, omit_defaults=True):
    """One page of a fold. Names of buckets and keys are percent-encoded."""

    partition: Annotated[int, msgspec.Meta(ge=0), right("a number; `isthmus partition list` shows them")]
    kind: Annotated[Any, _described(types=["string"])] = msgspec.UNSET
    bucket: Text = msgspec.UNSET
    key_from: Text = msgspec.UNSET
    key_to: Text = msgspec.UNSET
    segment_from: Number = msgspec.UNSET
    segment_to: Number = msgspec.UNSET
    since_ms: Number = msgspec.UNSET
    before_ms: Number = msgspec.UNSET
    siblings_over: Number = msgspec.UNSET
    size_over: Number = msgspec.UNSET
    queue: Annotated[Any, _described(types=["string"])] = msgspec.UNSET
    dry_run: Annotated[Any, _described(types=["boolean"])] = msgspec.UNSET
    next: Annotated[Any, _described(types=["object"])] = msgspec.UNSET
    by: Annotated[Any, _described(types=["string"])] = msgspec.UNSET

    def only_reads(self) -> bool:
        """See JsonRequest; without `dry_run` a fold is dry."""
        return not (isinstance(self.kind, str) and self.kind in ACTS and self.dry_run is False)


def add_folds(api: HttpApplication, services: NodeServices) -> None:
    """Add the route of folds."""

    async def page(request: Request, body: FoldPageRequest) -> Reply:
        """One page of a fold over one partition, by the node that leads it.

        Answers rows, counts, and `next`, the body's `next` for the page after it; null at the end.
        """
        records = services.controller.records
        if records and body.partition not in records:
            raise RequestRefused(
                404, "unknown-partition", f"there is no partition {body.partition}: {len(records)} are there"
            )
        found = await services.folding.page(body.partition, parse_fold_request(msgspec.to_builtins(body)))
        request.changed(None, {"matched": found.matched, "done": found.done, "refused": dict(found.refused)})
        return json_reply(page_document(found))

    api.router.add("POST", "/admin/folds", BodyHandler(FoldPageRequest, page))
