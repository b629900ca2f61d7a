"""GET /cachedtrees/..., /rangetrees/...: a Riak's full-sync compares its trees with those of this cluster.

Any node answers for its cluster. Trees of an n_val are kept where `[[riak.trees]]` says so (`aae.riak_trees`); those of
a range, and keys with their clocks, are made by a fold over the key rows (`node.client_api.riak_folds`). The forms of
paths, `filter` and answers are Riak's; docs/http-between.md lists what differs.
"""

from __future__ import annotations

import asyncio
import zlib
from base64 import b64encode
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from isthmus.aae.folds.folds import FoldKind, FoldRequest, FoldScope, Page, RiakTreeShape
from isthmus.aae.riak_trees.local import BRANCH_COUNT, BRANCH_LEAVES
from isthmus.node.client_api.riak_filter import TREE_BITS, parse_branches, parse_filter, parse_leaves
from isthmus.node.client_api.riak_folds import RiakFoldRoutes, check_method, clock_rows, made_of, reply_with
from isthmus.node.http.application import HttpApplication, Request
from isthmus.node.http.responses import Reply, RequestRefused
from isthmus.repl.model.errors import CodecError, Overloaded
from isthmus.repl.model.keys import DEFAULT_BUCKET_TYPE

QUESTIONS_MAX: Final = 8
"""Requests for hashes answered at once: a Riak's full-sync sends one at a time, and each may hold some 10 MB."""

N_VAL_MAX: Final = 1_000
"""Largest n_val in a path; a Riak's is below the number of its nodes."""

_BIG_ENDIAN: Final = np.dtype(">u4")


class NotUtf8(CodecError):
    """A key cannot be named in JSON."""

    reason = "not-utf-8"


class RiakTrees(Protocol):
    """Riak's trees of this cluster (`aae.riak_trees.cluster.ClusterRiakTrees`)."""

    def types_of(self, n_val: int) -> Sequence[bytes]:
        """The bucket types of the n_val. Raises UnknownNVal, NotReady."""

    async def root(self, n_val: int) -> NDArray[np.uint32]:
        """The hashes of all branches. Raises UnknownNVal, NotReady, Incomplete."""

    async def branches(self, n_val: int, branches: Sequence[int]) -> NDArray[np.uint32]:
        """The leaves of these branches, a row for each. Raises UnknownNVal, NotReady, Incomplete."""


class RiakTreeRoutes:
    """The routes of a Riak's full-sync."""

    def __init__(self, trees: RiakTrees, folds: RiakFoldRoutes, api: HttpApplication) -> None:
        self._trees = trees
        self._folds = folds
        self.running = 0
        add = api.router.add
        add("GET", "/cachedtrees/nvals/{n_val}/root", self._root)
        add("GET", "/cachedtrees/nvals/{n_val}/branch", self._branch)
        add("GET", "/cachedtrees/nvals/{n_val}/keysclocks", self._clocks)
        for prefix in ("", "/types/{type}"):
            bucket = f"/rangetrees{prefix}/buckets/{{bucket}}"
            add("GET", f"{bucket}/trees/{{size}}", self._range_tree)
            add("GET", f"{bucket}/keysclocks", self._range_clocks)

    # -- trees of an n_val ---------------------------------------------------------------------------------

    async def _root(self, request: Request) -> Reply:
        """The hashes of all branches of the tree of an n_val."""
        n_val = _n_val(request)
        self._begin()
        try:
            root = await self._trees.root(n_val)
        finally:
            self.running -= 1
        return reply_with({"root": _base64(root)}, Counter())

    async def _branch(self, request: Request) -> Reply:
        """The leaves of some branches of the tree of an n_val."""
        n_val, wanted = _n_val(request), parse_branches(request.query.get("filter"), BRANCH_COUNT)
        self._begin()
        try:
            leaves = await self._trees.branches(n_val, wanted)
        finally:
            self.running -= 1

        def made() -> Reply:
            rows = [{"branch-id": one, "branch": _base64(row)} for one, row in zip(wanted, leaves, strict=True)]
            return reply_with({"branches": rows}, Counter())

        return await made_of(made, len(wanted) * BRANCH_LEAVES)

    def _begin(self) -> None:
        if self.running >= QUESTIONS_MAX:
            raise Overloaded(f"{QUESTIONS_MAX} questions about Riak's trees are being answered, this node's limit")
        self.running += 1

    async def _clocks(self, request: Request) -> Reply:
        """The keys of some leaves of the tree of an n_val, with their clocks."""
        check_method(request)
        scope, types = parse_leaves(request.query.get("filter")), self._trees.types_of(_n_val(request))
        return await self._rows(request, types, scope)

    # -- ranges --------------------------------------------------------------------------------------------

    async def _range_clocks(self, request: Request) -> Reply:
        """The keys of a range of a bucket, with their clocks."""
        check_method(request)
        scope = parse_filter(request.query.get("filter"), _bucket(request)).scope
        return await self._rows(request, [request.params.get("type", DEFAULT_BUCKET_TYPE)], scope)

    async def _rows(self, request: Request, types: Sequence[bytes], scope: FoldScope) -> Reply:
        found: list[tuple[bytes, Page]] = []
        async with self._folds.run(request, acts=False) as run:
            for bucket_type in types:
                found.append((bucket_type, await run.over(bucket_type, FoldRequest(FoldKind.KEY_CLOCKS, scope))))
                run.check_size(sum(len(page.found) for _, page in found))

        def made() -> Reply:
            rows = [row for bucket_type, page in found for row in clock_rows(bucket_type, page, _utf8)]
            refused: Counter[str] = Counter()
            for _, page in found:
                refused.update(page.refused)
            return reply_with({"keys-clocks": rows}, refused)

        return await made_of(made, sum(len(page.found) for _, page in found))

    async def _range_tree(self, request: Request) -> Reply:
        """The tree of a range of a bucket."""
        check_method(request)
        bits = TREE_BITS.get(request.text("size"))
        if bits is None:
            raise RequestRefused(400, "bad-path", f"the size in the URL must be one of {', '.join(TREE_BITS)}")
        asked = parse_filter(request.query.get("filter"), _bucket(request))
        leaves = np.zeros(1 << bits, np.uint32)

        def add(page: Page) -> None:
            # Every key is in one page, and every leaf once in each.
            leaves[list(page.leaves)] ^= np.fromiter(page.leaves.values(), np.uint32, len(page.leaves))
            page.leaves = {}

        fold = FoldRequest(FoldKind.RIAK_TREE, asked.scope, tree=RiakTreeShape(bits, asked.hash_iv))
        async with self._folds.run(request, acts=False) as run:
            page = await run.over(request.params.get("type", DEFAULT_BUCKET_TYPE), fold, add)
        return await asyncio.to_thread(lambda: reply_with({"tree": exported(leaves)}, page.refused))


def exported(leaves: NDArray[np.uint32]) -> dict[str, Any]:
    """A tree as Riak exports it: the hashes of its branches, and by branch its leaves, compressed."""
    branches = leaves.reshape(-1, BRANCH_LEAVES)
    return {
        "level1": _base64(np.bitwise_xor.reduce(branches, axis=1)),
        "level2": {
            str(at): b64encode(zlib.compress(row.astype(_BIG_ENDIAN).tobytes(), 1)).decode()
            for at, row in enumerate(branches)
        },
    }


def _base64(hashes: NDArray[np.uint32]) -> str:
    return b64encode(hashes.astype(_BIG_ENDIAN).tobytes()).decode()


def _n_val(request: Request) -> int:
    text = request.text("n_val")
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and 1 <= int(text) <= N_VAL_MAX):
        raise RequestRefused(400, "bad-path", f"the n_val in the URL must be a whole number from 1 to {N_VAL_MAX}")
    return int(text)


def _bucket(request: Request) -> bytes:
    bucket = request.params["bucket"]
    if not bucket:
        raise RequestRefused(400, "bad-key", "the bucket must not be empty")
    return bucket


def _utf8(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise NotUtf8("a name that is not UTF-8 cannot be compared over HTTP") from None
