"""A cluster's objects, over the client listeners of its nodes: what fails for now is repeated at the next node."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Final, TypeVar
from urllib.parse import quote

from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.node.cli.object_client import ObjectClient
from isthmus.repl.model.errors import BadInput, OutcomeUnknown, PeerFault
from isthmus.repl.model.keys import DEFAULT_BUCKET_TYPE

Result = TypeVar("Result")

BACKOFF_FIRST_S: Final = 0.05
BACKOFF_LAST_S: Final = 1.0
"""Waits between attempts double from the first to the last; a restarting node is back in a few seconds."""

RETRY_LIMIT_S: Final = 180.0
"""How long one request is retried before the demo gives up; a killed node with a full log is back long before."""

KINDS: Final = {"unavailable": "unreachable", OutcomeUnknown.reason: "unknown"}
"""Reason of a failure -> its kind in the outcome; every other is "refused"."""


class Stopped(Exception):
    """The demo ends; the request was not repeated."""


class FailoverClient:
    """The nodes of one cluster at `urls`, any of which serves all keys. Uses one until it fails, beginning with number
    `first` modulo their count. For one thread; `stopping` ends the retries."""

    def __init__(self, urls: Sequence[str], stopping: threading.Event, first: int = 0) -> None:
        self._nodes = deque(ObjectClient(url) for url in urls)
        self._nodes.rotate(-first)
        self._stopping = stopping
        self.failures: Counter[str] = Counter()
        """Attempts that failed and were repeated, by kind: "unreachable", "refused", "unknown"."""

    def close(self) -> None:
        """Close the connections."""
        for node in self._nodes:
            node.close()

    def list_keys(self, bucket: bytes) -> list[bytes]:
        """Every live key. Raises as `retrying`."""
        path = f"/buckets/{quote(bucket, safe='')}/keys?keys=stream&encoding=percent"
        return self.retrying(lambda node: list(node.names(path, "keys")))

    def read(self, bucket: bytes, keys: Sequence[bytes]) -> list[list[bytes]]:
        """The values of each key's siblings, in order of `keys`. Raises as `retrying`."""
        return self.retrying(lambda node: [values for values, _ in read_keys(node, bucket, keys)])

    def retrying(self, request: Callable[[ObjectClient], Result]) -> Result:
        """The result of `request`, repeated at the next node when it raises CommandFailed (UNAVAILABLE).

        Raises BadInput for a refusal that repeating cannot change, PeerFault after RETRY_LIMIT_S, Stopped.
        """
        delay_s = BACKOFF_FIRST_S
        give_up_s = time.monotonic() + RETRY_LIMIT_S
        while True:
            try:
                return request(self._nodes[0])
            except CommandFailed as error:
                if error.exit_code is not Exit.UNAVAILABLE:
                    raise BadInput(str(error)) from error
                if time.monotonic() > give_up_s:
                    raise PeerFault(f"no success for {RETRY_LIMIT_S:.0f} s; the last attempt: {error}") from error
                self.failures[KINDS.get(error.reason, "refused")] += 1
            self._nodes.rotate(-1)
            if self._stopping.wait(delay_s * random.uniform(0.5, 1.0)):  # noqa: S311 - jitter
                raise Stopped
            delay_s = min(delay_s * 2, BACKOFF_LAST_S)


def read_keys(node: ObjectClient, bucket: bytes, keys: Sequence[bytes]) -> list[tuple[list[bytes], bytes | None]]:
    """The values of each key's siblings, none when it is absent or deleted, and its clock, None when it was never
    written. Raises CommandFailed."""
    answers = node.batch("/batch/get", [(DEFAULT_BUCKET_TYPE, bucket, key) for key in keys])
    return [
        ([] if status == 404 else [sibling[0] or b"" for sibling in siblings], clock)
        for status, clock, siblings in answers
    ]


class ObjectWrite:
    """One write of a key, for any number of attempts: over the clock that was read first, under one request id, so that
    it takes effect once. A `value` of None deletes.

    The cluster remembers request ids for a limited time. So after an attempt of unknown outcome the key is read once
    more, and written again where the lost write took effect beside the repeated one.
    """

    def __init__(self, bucket: bytes, key: bytes, value: bytes | None) -> None:
        self._bucket, self._key, self._value = bucket, key, value
        self._item: tuple[object, ...] | None = None
        self._failed = False

    def attempt(self, node: ObjectClient) -> None:
        """Send it once. Raises CommandFailed, also when the key has siblings and must be written over them."""
        if self._item is None:
            ((values, clock),) = read_keys(node, self._bucket, [self._key])
            if self._value is None and not values:
                return
            place = (DEFAULT_BUCKET_TYPE, self._bucket, self._key, self._value)
            self._item = (*place, "application/octet-stream", clock, None, uuid.uuid4().hex)
            self._failed = False
        try:
            node.batch("/batch/put", [self._item])
        except CommandFailed:
            self._failed = True
            raise
        if self._failed:
            ((values, _),) = read_keys(node, self._bucket, [self._key])
            if len(values) != (self._value is not None):
                self._item = None
                sentence = "a write of unknown outcome took effect beside its repetition"
                raise CommandFailed(Exit.UNAVAILABLE, OutcomeUnknown.reason, sentence)


def key_path(bucket: bytes, key: bytes) -> str:
    """The path of a key, with every byte percent-encoded that has a meaning in a URL, slashes too."""
    return f"/buckets/{quote(bucket, safe='')}/keys/{quote(key, safe='')}"
