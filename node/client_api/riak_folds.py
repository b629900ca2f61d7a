"""GET /objectstats/..., /tombs/..., /erase/... and others: the folds of Riak's operators, answered by folds of ours.

A request is answered once all partitions of its bucket type have been read, page by page, from their leaders: any node
answers for its cluster. The forms of paths, `filter` and answers are Riak's; docs/http-between.md lists what differs.
Four of these GETs change something (`node.http.authorization.ACTING_GETS`).
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from isthmus.aae.folds.folds import FoldCursor, FoldKind, FoldMatch, FoldRequest, FoldScope, Page
from isthmus.config.settings import LimitSettings
from isthmus.node.client_api.riak_filter import parse_filter
from isthmus.node.http.application import HttpApplication, Request
from isthmus.node.http.object_query import timeout_of
from isthmus.node.http.patience import answer_by_s
from isthmus.node.http.responses import JSON, Headers, Reply, RequestRefused
from isthmus.node.http.router import encode_segment
from isthmus.node.nouns.requests import JsonRequest
from isthmus.node.services.container import NodeServices
from isthmus.repl.coordinator.routing import UNREAD
from isthmus.repl.model.errors import (
    BadInput,
    CodecError,
    IsthmusError,
    NotReady,
    OutcomeUnknown,
    Overloaded,
    Retryable,
    TimedOut,
    TooLarge,
)
from isthmus.repl.model.keys import DEFAULT_BUCKET_TYPE
from isthmus.repl.model.vclock import decode_clock
from isthmus.repl.riak.clocks import clock_text

RETRY_DELAY_S: Final = 0.2
"""Pause before a page is asked for again: a leadership moves, or the leader's pages wait in a line."""

SHARE_OF_PATIENCE: Final = 0.9
"""Part of the time within which the client must be answered, so that the answer says how far the fold came, and no fold
goes on for nobody."""

OFF_LOOP_FROM: Final = 1_000
"""Answers of more rows are made in a thread: a row takes some 5 µs."""

REFUSED: Final = b"x-isthmus-refused"
"""Header that counts keys that were passed over, in all and by reason. The JSON cannot: Riak's clients take no further
member."""

REFUSED_CHARS_MAX: Final = 1_000

REASONS_MAX: Final = 100
"""Reasons that are told apart; a reason may name the offset of its key, so that each key has its own."""

OTHERS: Final = "other reasons"

LARGEST: Final = (1 << 63) - 1
"""Largest number in a path."""


class ClusterFolds(Protocol):
    """Folds over this cluster's partitions."""

    def bucket_types(self) -> Sequence[bytes]:
        """All bucket types. Raises NotReady."""

    def partitions(self, bucket_type: bytes) -> Sequence[int]:
        """The partitions of a bucket type. Raises UnknownBucketType, NotReady."""

    async def page(self, partition: int, request: FoldRequest) -> Page:
        """One page, from the partition's leader. Raises IsthmusError."""


class ClusterFoldsView(ClusterFolds):
    """See ClusterFolds; answers from a node's services."""

    def __init__(self, services: NodeServices) -> None:
        self._services = services

    def bucket_types(self) -> Sequence[bytes]:
        """See ClusterFolds."""
        known = self._services.coordinator.routes.known_types()
        if known is None:
            raise NotReady("this node does not know all bucket types yet")
        return sorted(known)

    def partitions(self, bucket_type: bytes) -> Sequence[int]:
        """See ClusterFolds."""
        found = self._services.coordinator.routes.partition_ids(bucket_type)
        if UNREAD in found:
            raise NotReady("this node does not know all partitions of the bucket type yet")
        return found

    async def page(self, partition: int, request: FoldRequest) -> Page:
        """See ClusterFolds."""
        return await self._services.folding.page(partition, request)


class _Counted(JsonRequest, frozen=True):
    """A fold that only counts; the audit log leaves it out."""

    def only_reads(self) -> bool:
        """See JsonRequest."""
        return True


class RiakFoldRoutes:
    """The routes of Riak's folds."""

    def __init__(self, folds: ClusterFolds, limits: LimitSettings, api: HttpApplication) -> None:
        self._folds = folds
        self._limits = limits
        self.running = 0
        """Folds that run now."""
        add = api.router.add
        add("GET", "/aaebucketlist", self._bucket_list)
        for prefix in ("", "/types/{type}"):
            bucket = prefix + "/buckets/{bucket}"
            add("GET", f"/objectstats{bucket}", self._object_stats)
            add("GET", f"/objectsizes{bucket}/sizes/{{size}}", self._object_sizes)
            add("GET", f"/siblings{bucket}/counts/{{count}}", self._siblings)
            add("GET", f"/tombs{bucket}", self._tombs)
            add("GET", f"/reap{bucket}", self._reap)
            add("GET", f"/erase{bucket}", self._erase)
            add("GET", f"/rangerepl{bucket}/queuename/{{queue}}", self._repl)
            add("GET", f"/rangerepair{bucket}", self._repair)

    async def _bucket_list(self, request: Request) -> Reply:
        """The buckets of all types with a key that is not deleted."""
        check_method(request)
        for name in ("nval", "filter"):  # a client of Riak sends its n_val as the filter
            request.number(name, 1, 1, LARGEST)
        found: list[tuple[bytes, bytes]] = []
        refused: Counter[str] = Counter()
        async with self.run(request, acts=False) as run:
            for bucket_type in self._folds.bucket_types():
                page = await run.over(bucket_type, FoldRequest(FoldKind.LIST_BUCKETS, FoldScope()))
                found += [(bucket_type, bucket) for bucket in page.buckets]
                _count_refused(refused, page.refused)
                run.check_size(len(found))
        # In Riak's order: what has a type precedes what has none.
        found.sort(key=lambda each: (each[0] == DEFAULT_BUCKET_TYPE, *each))
        return reply_with({"results": [bucket_of(*each) for each in found]}, refused)

    async def _object_stats(self, request: Request) -> Reply:
        """Numbers and sizes of the keys of a bucket."""
        page = await self._page(request, FoldKind.KEY_STATS)
        document = {
            "total_count": page.objects,
            "total_size": page.bytes,
            "sizes": {str(power): count for power, count in sorted(page.sizes.items())},
            "siblings": {str(number): count for number, count in sorted(page.siblings.items())},
        }
        return reply_with(document, page.refused)

    async def _object_sizes(self, request: Request) -> Reply:
        """Keys whose object is larger than a number of bytes."""
        over = _number(request, "size")
        page = await self._page(request, FoldKind.FIND_KEYS, size_over=over)
        return await self._results(page, lambda one: one.size_bytes)

    async def _siblings(self, request: Request) -> Reply:
        """Keys with more siblings than a number."""
        over = _number(request, "count")
        page = await self._page(request, FoldKind.FIND_KEYS, siblings_over=over)
        return await self._results(page, lambda one: one.siblings)

    @staticmethod
    async def _results(page: Page, value: Callable[[FoldMatch], int]) -> Reply:
        def made() -> Reply:
            rows = sorted(page.found, key=lambda one: one.key)
            return reply_with({"results": [{"key": _text(one.key), "value": value(one)} for one in rows]}, page.refused)

        return await made_of(made, len(page.found))

    async def _tombs(self, request: Request) -> Reply:
        """Deleted keys whose tombstones are still there, with their clocks."""
        page = await self._page(request, FoldKind.TOMB_CLOCKS)
        of_type = request.params.get("type", DEFAULT_BUCKET_TYPE)

        def made() -> Reply:
            page.found.sort(key=lambda one: one.key)
            return reply_with({"keys-clocks": clock_rows(of_type, page, _text)}, page.refused)

        return await made_of(made, len(page.found))

    async def _reap(self, request: Request) -> Reply:
        """Count tombstones, or remove those that every queue has passed."""
        return await self._changed(request, FoldKind.REAP_TOMBS)

    async def _erase(self, request: Request) -> Reply:
        """Count keys, or delete them, each in the version that was found."""
        return await self._changed(request, FoldKind.ERASE_KEYS)

    async def _changed(self, request: Request, kind: FoldKind) -> Reply:
        page = await self._page(request, kind, counts=True)
        counted = isinstance(request.model, _Counted)
        return reply_with({"dispatched_count": page.matched if counted else page.done}, page.refused)

    async def _repl(self, request: Request) -> Reply:
        """Queue references to the keys of a range, at fold priority."""
        page = await self._page(request, FoldKind.REPL_KEYS, queue=request.text("queue"))
        return reply_with({"dispatched_count": page.done}, page.refused)

    async def _repair(self, request: Request) -> Reply:
        """Check the objects of a range at their leaders, and repair what is damaged."""
        page = await self._page(request, FoldKind.REPAIR_KEYS)
        return reply_with({"dispatched_count": page.matched}, page.refused)

    async def _page(
        self, request: Request, kind: FoldKind, *, counts: bool = False, queue: str = "", **more: Any
    ) -> Page:
        """All pages of a fold over a bucket, as one. `counts`: unless its filter says that it is to act."""
        check_method(request)
        bucket = request.params["bucket"]
        if not bucket:
            raise RequestRefused(400, "bad-key", "the bucket must not be empty")
        asked = parse_filter(request.query.get("filter"), bucket)
        acts = _acts(kind) and (asked.acts or not counts)
        if acts:
            request.document = {"filter": dict(asked.document)}
        else:
            request.model = _Counted()
        fold = FoldRequest(kind, asked.scope._replace(**more), queue=queue, dry=not acts)
        async with self.run(request, acts=acts) as run:
            page = await run.over(request.params.get("type", DEFAULT_BUCKET_TYPE), fold)
        if acts:
            request.changed(None, {"matched": page.matched, "done": page.done, "refused": dict(page.refused)})
        return page

    def run(self, request: Request, *, acts: bool) -> FoldRun:
        """A fold of a request, to be entered."""
        return FoldRun(self, self._folds, self._limits, request, acts=acts)


def _acts(kind: FoldKind) -> bool:
    return kind in (FoldKind.REAP_TOMBS, FoldKind.ERASE_KEYS, FoldKind.REPL_KEYS, FoldKind.REPAIR_KEYS)


class FoldRun:
    """One request's fold, with its share of the limits."""

    def __init__(
        self, routes: RiakFoldRoutes, folds: ClusterFolds, limits: LimitSettings, request: Request, *, acts: bool
    ) -> None:
        self._routes = routes
        self._folds = folds
        self._limits = limits
        self._request = request
        self._acts = acts
        limit_s = limits.fold_timeout_ms / 1000
        patience_s = answer_by_s(request.headers)
        self._limit_s = min(
            timeout_of(request.query) or limit_s,
            limit_s,
            limit_s if patience_s is None else patience_s * SHARE_OF_PATIENCE,
        )
        self._ends_s = 0.0
        self._gone: asyncio.Future[None] | None = None
        self._doubtful = False
        """Whether an act may have begun that no page has told of."""

    async def __aenter__(self) -> FoldRun:
        if self._routes.running >= self._limits.folds:
            raise Overloaded(f"{self._limits.folds} of Riak's folds run on this node, its limit (limits.folds)")
        self._routes.running += 1
        try:
            await self._request.body()  # there is none; behind it the client's leaving is noticed
        except BaseException:
            self._routes.running -= 1
            raise
        self._ends_s = asyncio.get_running_loop().time() + self._limit_s
        self._gone = asyncio.ensure_future(self._request.disconnected())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._routes.running -= 1
        if self._gone is not None:
            self._gone.cancel()

    async def over(
        self, bucket_type: bytes, fold: FoldRequest, on_page: Callable[[Page], object] | None = None
    ) -> Page:
        """The sum of all pages over a bucket type, each given to `on_page`. Raises IsthmusError; OutcomeUnknown where a
        part was done."""
        total = Page()
        try:
            for partition in self._folds.partitions(bucket_type):
                cursor: FoldCursor | None = FoldCursor()
                while cursor is not None:
                    page = await self._page(partition, fold._replace(cursor=cursor))
                    if on_page is not None:
                        on_page(page)
                    _add(total, page, keeps=not self._acts)
                    self.check_size(len(total.found))
                    self.check_size(len(total.buckets))
                    cursor = page.next
        except IsthmusError as error:
            if self._acts and (total.done or self._doubtful):
                raise OutcomeUnknown(f"{error}; {total.done} of {total.matched} keys were done before") from error
            raise
        return total

    def check_size(self, rows: int) -> None:
        """Raises TooLarge if an answer of so many rows is above the limit."""
        limit = self._limits.fold_keys_count
        if rows > limit:
            raise TooLarge(f"more than {limit} rows (limits.fold_keys): give key_range or date_range in filter")

    async def _page(self, partition: int, fold: FoldRequest) -> Page:
        loop = asyncio.get_running_loop()
        why = "its pages take long"
        while True:
            if self._gone is not None and self._gone.done():
                raise RequestRefused(400, "cut-short", "the client left before the fold was done")
            if loop.time() >= self._ends_s:
                raise TimedOut(f"the fold was not done within {self._limit_s:g} s: {why}")
            try:
                page = await self._folds.page(partition, fold)
            except (Retryable, OutcomeUnknown) as error:
                # A page has the same effect twice. A queue that is full has taken a part of it.
                self._doubtful = self._doubtful or isinstance(error, Overloaded | OutcomeUnknown)
                why = f"{error.reason}: {error}"
            except BadInput:
                raise
            except IsthmusError:
                self._doubtful = True
                raise
            else:
                return page
            await asyncio.sleep(RETRY_DELAY_S)


def _add(total: Page, page: Page, *, keeps: bool) -> None:
    """Add a page; `keeps`: its rows, too."""
    total.scanned += page.scanned
    total.matched += page.matched
    total.done += page.done
    total.objects += page.objects
    total.tombstones += page.tombstones
    total.bytes += page.bytes
    total.sizes.update(page.sizes)
    total.siblings.update(page.siblings)
    total.buckets.update(page.buckets)
    _count_refused(total.refused, page.refused)
    if keeps:
        total.found += page.found


def _count_refused(total: Counter[str], refused: Counter[str]) -> None:
    for reason, count in refused.items():
        total[reason if reason in total or len(total) < REASONS_MAX else OTHERS] += count


def check_method(request: Request) -> None:
    """Raises RequestRefused (405) for HEAD, which would do all of it and show nothing."""
    if request.method != "GET":
        raise RequestRefused(405, "method-not-allowed", "a fold answers GET alone", [(b"allow", b"GET")])


def _number(request: Request, name: str) -> int:
    """A number in the path. Raises RequestRefused (400)."""
    text = request.params[name]
    if not (text.isdigit() and len(text) <= 19 and 1 <= int(text) <= LARGEST):
        raise RequestRefused(400, "bad-path", f"the {name} in the URL must be a whole number from 1")
    return int(text)


def _text(name: bytes) -> str:
    """A name as text; percent-encoded where it is not UTF-8, as in listings."""
    try:
        return name.decode()
    except UnicodeDecodeError:
        return encode_segment(name).decode("ascii")


def bucket_of(bucket_type: bytes, bucket: bytes, text_of: Callable[[bytes], str] = _text) -> dict[str, str]:
    """A bucket as Riak names it: the default type is none."""
    named = {"bucket": text_of(bucket)}
    return named if bucket_type == DEFAULT_BUCKET_TYPE else {"bucket-type": text_of(bucket_type), **named}


def clock_rows(bucket_type: bytes, page: Page, text_of: Callable[[bytes], str]) -> list[dict[str, str]]:
    """The keys that a fold has found, with their clocks; those are left out, and counted as refused, whose clock cannot
    be read, or for whose names `text_of` raises CodecError."""
    rows = []
    for one in page.found:
        try:
            names = {**bucket_of(bucket_type, one.bucket, text_of), "key": text_of(one.key)}
            rows.append({**names, "clock": clock_text(decode_clock(one.clock))})
        except CodecError as error:
            page.refused[f"{error.reason}: {error}"] += 1
    return rows


async def made_of(made: Callable[[], Reply], rows: int) -> Reply:
    """The answer that `made` makes of so many rows, in a thread if they are many."""
    return await asyncio.to_thread(made) if rows > OFF_LOOP_FROM else made()


def reply_with(document: object, refused: Counter[str]) -> Reply:
    """The answer with a document, and with what was refused."""
    headers: Headers = [(b"content-type", JSON)]
    if refused:
        headers.append((REFUSED, _reasons(refused)))
    return Reply(200, headers, json.dumps(document, separators=(",", ":")).encode())


def _reasons(refused: Counter[str]) -> bytes:
    """The number of keys, and each reason with its own: "3; 2: REASON; 1: REASON"."""
    each = [f"{count}: {' '.join(reason.split())}" for reason, count in refused.most_common()]
    text = "; ".join([str(refused.total()), *each])
    shown = text if len(text) <= REFUSED_CHARS_MAX else f"{text[: REFUSED_CHARS_MAX - 3]}..."
    return shown.encode("ascii", "backslashreplace")
