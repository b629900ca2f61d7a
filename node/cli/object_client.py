"""A node's client listener, for `isthmus kv` and the demo: batches and listings. docs/http.md describes the requests.

Batches are used for single objects too: they accept every byte string as a name and return all siblings at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import msgpack

from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.node.cli.node_listener import ListenerKind, NodeListener, reason_of
from isthmus.node.cli.output import printable
from isthmus.repl.http.client import OPEN, PeerCredentials

HTTP: Final = ListenerKind("--http", "ISTHMUS_HTTP", "http://127.0.0.1:8098")

ANSWER_BYTES_MAX: Final = 128_000_000
"""Largest answer read into memory: more than the largest object with all its siblings at the default limits."""

NO_SUCH_PATH: Final = "unknown-path"
"""The reason that an admin listener gives for a client's request; other servers give none."""


class ObjectClient:
    """The client listener of one node. `url` is http(s)://HOST:PORT; raises CommandFailed (usage) when it is not."""

    def __init__(self, url: str, access: PeerCredentials = OPEN) -> None:
        self._listener = NodeListener(HTTP, url, access)

    def close(self) -> None:
        """Close the connections."""
        self._listener.close()

    def batch(self, path: str, items: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
        """The answers to the items of a batch, in order. Raises CommandFailed, UNAVAILABLE or REFUSED, also when one
        item failed; an absent key is an answer."""
        raw = b"".join(self._pieces("POST", path, msgpack.packb(items)))
        try:
            answers = [
                (int(status), body, reason) for status, body, reason in msgpack.unpackb(raw, strict_map_key=False)
            ]
            if len(answers) != len(items):
                raise ValueError(f"{len(answers)} answers to {len(items)} items")
        except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
            what = "answers what is no batch's answer; is this a node's client listener?"
            raise self._listener.unavailable(what) from error
        for status, _, reason in answers:
            if status >= 400 and isinstance(reason, str) and reason != "not-found":
                code, _, sentence = reason.partition(": ")
                raise CommandFailed(Exit.REFUSED if status < 500 else Exit.UNAVAILABLE, code, sentence)
        return [list(answer) for answer in answers]

    def names(self, path: str, what: str) -> Iterator[bytes]:
        """The names of a streamed listing. Raises CommandFailed, also in the middle."""
        decoder = json.JSONDecoder()
        rest = ""
        for piece in self._pieces("GET", path, None):
            rest += piece.decode("ascii", "replace")
            while rest:
                try:
                    document, end = decoder.raw_decode(rest)
                except json.JSONDecodeError:
                    break  # the object continues in the next piece
                rest = rest[end:]
                if isinstance(document, dict) and "error" in document:
                    raise CommandFailed(Exit.UNAVAILABLE, str(document.get("reason")), str(document["error"]))
                if not isinstance(document, dict) or not isinstance(document.get(what), list):
                    raise self._listener.unavailable("answers what is no listing; is this a node's client listener?")
                yield from map(unquote_to_bytes, document[what])
        if rest:
            raise self._listener.unavailable("broke off in the middle of the listing")

    def _pieces(self, method: str, path: str, body: bytes | None) -> Iterator[bytes]:
        """The body of an answer, refusals raised; a stream as it comes, others up to ANSWER_BYTES_MAX."""
        with self._listener.request(method, path, body) as response:
            status: int = response.status_code
            if status >= 400:
                reason = reason_of(response)
                if reason == NO_SUCH_PATH or (not reason and status < 500):
                    raise self._listener.unavailable(f"answers {status}; is this a node's client listener?")
                text = printable(next(response.iter_content(4096), b"").decode("utf-8", "replace").strip())
                raise self._listener.refused(status, reason, text or f"{self._listener.url} answers {status}")
            yield from self._listener.pieces(response, None if body is None else ANSWER_BYTES_MAX)
