"""A node's client listener, for `isthmus kv` and the demo: batches and listings. docs/http.md describes the requests.

Batches are used for single objects too: they accept every byte string as a name and return all siblings at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import msgpack

from isthmus.config.validation import check_peer_url
from isthmus.node.cli.admin_client import (
    ANSWER_TIMEOUT_S,
    CONNECT_TIMEOUT_S,
    TLS_WANTED,
    TOKEN_HINT,
    UNAUTHORIZED,
    cause,
    check_path,
)
from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.node.cli.output import printable
from isthmus.repl.http.client import OPEN, PeerCredentials, session

ANSWER_BYTES_MAX: Final = 128_000_000
"""Largest answer read into memory: more than the largest object with all its siblings at the default limits."""

NO_SUCH_PATH: Final = "unknown-path"
"""The reason that an admin listener gives for a client's request; other servers give none."""


class ObjectClient:
    """The client listener of one node. `url` is http(s)://HOST:PORT; raises CommandFailed (usage) when it is not."""

    def __init__(self, url: str, access: PeerCredentials = OPEN) -> None:
        try:
            self.url = check_peer_url(url)
        except ValueError as error:
            raise CommandFailed(Exit.USAGE, "bad-input", f"--http: {error}") from None
        self._session = session(access=access)

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

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
            raise self._unavailable("answers what is no batch's answer; is this a node's client listener?") from error
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
                    raise self._unavailable("answers what is no listing; is this a node's client listener?")
                yield from map(unquote_to_bytes, document[what])
        if rest:
            raise self._unavailable("broke off in the middle of the listing")

    def _pieces(self, method: str, path: str, body: bytes | None) -> Iterator[bytes]:
        """The body of an answer, refusals raised; a stream as it comes, others up to ANSWER_BYTES_MAX."""
        check_path(path)
        size = 0
        try:
            with self._session.request(
                method,
                self.url + path,
                data=body,
                timeout=(CONNECT_TIMEOUT_S, ANSWER_TIMEOUT_S),
                allow_redirects=False,
                stream=True,
            ) as response:
                status = response.status_code
                if status >= 400:
                    reason = response.headers.get("X-Isthmus-Reason", "")
                    if reason == TLS_WANTED:
                        raise self._unavailable("speaks TLS: write https://")
                    if reason == NO_SUCH_PATH or (not reason and status < 500):
                        raise self._unavailable(f"answers {status}; is this a node's client listener?")
                    text = next(response.iter_content(4096), b"").decode("utf-8", "replace").strip()
                    hint = TOKEN_HINT if status == UNAUTHORIZED else ""
                    raise CommandFailed(
                        Exit.REFUSED if status < 500 else Exit.UNAVAILABLE,
                        reason,
                        (printable(text) or f"{self.url} answers {status}") + hint,
                    )
                for piece in response.iter_content(65_536):
                    size += len(piece)
                    if body is not None and size > ANSWER_BYTES_MAX:
                        raise self._unavailable(f"answers with more than {ANSWER_BYTES_MAX} bytes")
                    yield piece
        except OSError as error:  # everything that requests raises is one
            raise self._unavailable(f"does not answer: {cause(error)}") from error

    def _unavailable(self, what: str) -> CommandFailed:
        hint = " (--http URL or ISTHMUS_HTTP names another node)"
        return CommandFailed(Exit.UNAVAILABLE, "unavailable", f"{self.url} {what}{hint}")
