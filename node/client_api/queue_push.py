"""POST /queuename/Q: Riak's push of references, for keys that another cluster should get.

The body is Riak's, `{"keys-clocks": [{"bucket-type", "bucket", "key", "clock"}, ...]}`, and so is the line of the
answer. The references have the second priority; docs/http-between.md lists the differences from Riak. Riak's GET of the
same path is in `node.client_api.queue_fetch`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from isthmus.node.client_api.object_headers import parse_vclock
from isthmus.node.http.application import HttpApplication, Request, text_reply
from isthmus.node.http.responses import Reply, RequestRefused
from isthmus.queues.window_rules import FULL_SYNC
from isthmus.repl.coordinator.routing import UnknownBucketType
from isthmus.repl.model.errors import CodecError, Overloaded
from isthmus.repl.model.keys import DEFAULT_BUCKET_TYPE, Key
from isthmus.repl.riak.clocks import parse_clock_text

PUSH_MAX: Final = 10_000
"""Most keys in one push, as in the admin API."""

WAIT_MS: Final = 5_000
"""How long a push waits for free queue space; then it is refused, and references accepted before stay queued."""

NAMES: Final = ("bucket-type", "bucket", "key")

_RIGHT: Final = 'the form is {"keys-clocks": [{"bucket-type": "t", "bucket": "b", "key": "k", "clock": "BASE64"}]}'


class ReferencePushes(Protocol):
    """Pushes into source queues (`queues.admin.QueueActs`)."""

    async def push(self, name: str, keys: Sequence[Key], priority: int, wait_ms: int) -> int:
        """Enqueue references; returns how many of the first were accepted. Raises UnknownQueue, BadInput, NotReady."""

    async def lengths(self, name: str) -> tuple[int, int, int | None]:
        """References that wait on this node at the fold, full-sync and real-time priority; None: not known."""


class KnownBucketTypes(Protocol):
    """The bucket types of the cluster (`node.client_api.riak_info.RiakInfo`)."""

    def check_type(self, bucket_type: bytes) -> None:
        """Raise UnknownBucketType or NotReady unless the bucket type exists."""


class QueuePushes:
    """The route of pushes."""

    def __init__(
        self, pushing: ReferencePushes, types: KnownBucketTypes, api: HttpApplication, *, key_limit_bytes: int
    ) -> None:
        self._pushing = pushing
        self._key_limit = key_limit_bytes
        self._types = types
        api.router.add("POST", "/queuename/{queue}", self._push)

    async def _push(self, request: Request) -> Reply:
        """References that another cluster should get once more, in Riak's form."""
        queue = request.text("queue")
        keys = _keys(await request.json())
        for at, key in enumerate(keys):
            if max(len(key.bucket), len(key.key)) > self._key_limit:
                raise RequestRefused(
                    400,
                    "bad-key",
                    f"keys-clocks[{at}]: bucket and key have 1 to {self._key_limit} bytes (limits.key_size)",
                )
        self._check_types(keys)
        taken = await self._pushing.push(queue, keys, FULL_SYNC, WAIT_MS)
        if taken < len(keys):
            raise Overloaded(f"queue {queue} is full: it took the first {taken} of {len(keys)}; push all again")
        lengths = await self._pushing.lengths(queue)
        return text_reply(f"Queue {queue}: {' '.join('unknown' if n is None else str(n) for n in lengths)}\n")

    def _check_types(self, keys: Sequence[Key]) -> None:
        """Check all bucket types before a key is enqueued; an error names the first key of the type. Raises
        UnknownBucketType, NotReady."""
        seen: set[bytes] = set()
        for at, key in enumerate(keys):
            if key.bucket_type in seen:
                continue
            seen.add(key.bucket_type)
            try:
                self._types.check_type(key.bucket_type)
            except UnknownBucketType as error:
                raise UnknownBucketType(f"keys-clocks[{at}]: {error}") from None


def _keys(body: Any) -> list[Key]:
    """The keys of a body. One bad element refuses all; the error names its index. Raises RequestRefused (400)."""
    listed = body.get("keys-clocks") if isinstance(body, dict) else None
    if not isinstance(listed, list):
        raise RequestRefused(400, "bad-json", f"the body has no list of keys: {_RIGHT}")
    if len(listed) > PUSH_MAX:
        raise RequestRefused(400, "bad-json", f"{len(listed)} keys in one push; {PUSH_MAX} are the most")
    return [_key(at, one) for at, one in enumerate(listed)]


def _key(at: int, one: Any) -> Key:
    if not isinstance(one, dict):
        raise RequestRefused(400, "bad-json", f"keys-clocks[{at}] is not an object: {_RIGHT}")
    parts = [one.get("bucket-type", DEFAULT_BUCKET_TYPE.decode()), one.get("bucket"), one.get("key")]
    for name, part in zip(NAMES, parts, strict=True):
        if not isinstance(part, str) or not part:
            raise RequestRefused(400, "bad-json", f"keys-clocks[{at}]: {name} must be a text that is not empty")
    _check_clock(at, one.get("clock"))
    try:
        return Key(*(part.encode() for part in parts))
    except UnicodeEncodeError as error:
        raise RequestRefused(400, "bad-json", f"keys-clocks[{at}]: {error.reason}") from error


def _check_clock(at: int, clock: Any) -> None:
    """Check a clock in one of three forms: an X-Riak-Vclock of ours, a Riak's in base64, or the list of its character
    codes, as a Riak's full-sync sends it. Raises RequestRefused (400)."""
    what = f"keys-clocks[{at}]: clock"
    try:
        parse_clock_text(clock)
    except CodecError as not_of_riak:
        if not isinstance(clock, str):
            sentence = f"{what} must be a text, as X-Riak-Vclock has it, or a Riak's: {not_of_riak}"
            raise RequestRefused(400, "bad-vclock", sentence) from None
        parse_vclock(clock.encode(errors="surrogatepass"), what)
