"""POST /admin/folds: one page of a fold over one partition, from whichever node leads it.

The command line asks page after page (`isthmus fold`), so that stopping it stops the fold. What a page is stands in
`aae.folds.folds`, its JSON in `aae.folds.fold_rpc`; docs/http.md lists the keys.
"""

from __future__ import annotations

from typing import Final

from isthmus.aae.folds.fold_rpc import page_document, parse_fold_request
from isthmus.node.admin_api.body import read_body
from isthmus.node.http.application import HttpApplication, Request, json_reply
from isthmus.node.http.responses import Reply, RequestRefused
from isthmus.node.services.container import NodeServices

KEYS: Final = frozenset(
    {
        "kind", "partition", "bucket", "key_from", "key_to", "segment_from", "segment_to", "since_ms", "before_ms",
        "siblings_over", "size_over", "queue", "dry_run", "next", "by",
    }
)  # fmt: skip


def add_folds(face: HttpApplication, services: NodeServices) -> None:
    """Let `face` answer for folds."""

    async def page(request: Request) -> Reply:
        wish = await read_body(request, KEYS)
        partition = wish.get("partition")
        if type(partition) is not int or partition < 0:
            raise RequestRefused(400, "bad-json", "partition is needed, a number; `isthmus partition list` shows them")
        records = services.controller.records
        if records and partition not in records:
            raise RequestRefused(
                404, "unknown-partition", f"there is no partition {partition}: {len(records)} are there"
            )
        return json_reply(page_document(await services.folding.page(partition, parse_fold_request(wish))))

    face.router.add("POST", "/admin/folds", page)
