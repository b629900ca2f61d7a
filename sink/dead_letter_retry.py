"""Retries dead letters on an operator's request, and removes those whose keys were settled otherwise.

An object that was not kept is requested by its key from a node of the source cluster; the answer is the object as it is
there now, which has seen the refused one. A dead letter that is accepted is removed; one that is refused again stays,
with the new reason and the newer object; one that a newer refusal of its key has replaced meanwhile does not change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final, Protocol
from urllib.parse import quote

import structlog

from isthmus.queues.wire import ANSWER_HEAD_BYTES, MEDIA_TYPE, ObjectRequest, decode_object_reply, encode_asking
from isthmus.repl.http.async_client import AsyncHttpPeer
from isthmus.repl.model.errors import CodecError, IsthmusError, PeerFault
from isthmus.repl.model.objects import summarize_encoded
from isthmus.repl.model.ports import KeyValue, TimeSource
from isthmus.repl.model.requests import PushItem, PushOutcome
from isthmus.repl.model.vclock import decode_clock, descends
from isthmus.sink.dead_letters import DeadLetter, DeadLetters
from isthmus.sink.fetch import ANSWER_OVERHEAD_BYTES, LocalCluster, WrongSourceCluster

log = structlog.get_logger(__name__)

SETTLED_BYTES: Final = 64_000_000
"""Bytes of objects that are read at once to check dead letters; the next round checks the others."""


class SourcePeers(Protocol):
    """Nodes of source clusters; `sink.worker_pool.WorkerPool`."""

    def peers_of(self, queue: str, cluster: bytes, best: str) -> Iterable[AsyncHttpPeer]:
        """Nodes of a cluster that a queue is fetched from, the one at URL `best` first."""


def _has_seen(here: bytes, refused: bytes) -> bool:
    """Whether the object here has seen all of the refused one; False if one of them cannot be decoded."""
    try:
        return descends(decode_clock(summarize_encoded(here).clock), decode_clock(summarize_encoded(refused).clock))
    except CodecError:
        return False


class DeadLetterRetry:
    """Retries of one node; `timeout_ms` bounds each request to a source."""

    def __init__(
        self,
        letters: DeadLetters,
        *,
        kv: KeyValue,
        time: TimeSource,
        local: LocalCluster,
        peers: SourcePeers,
        timeout_ms: int,
    ) -> None:
        self._letters = letters
        self._kv = kv
        self._time = time
        self._local = local
        self._peers = peers
        self._timeout_ms = timeout_ms

    async def retry(self, number: int) -> dict[str, Any]:
        """Push one dead letter again: {"id", "outcome", "reason", "error"}. Raises LocalFault."""
        answer: dict[str, Any] = {"id": number, "outcome": None, "reason": None, "error": None}
        letter = await asyncio.to_thread(self._letters.find, number)
        if letter is None:
            return answer | {"reason": "unknown-letter", "error": f"there is no dead letter {number}"}
        if letter.payload is None:
            try:
                payload = await self._fetch_object(letter)
            except IsthmusError as error:
                words = f"its object of {letter.size} bytes was not kept, and the source did not give it: {error}"
                return answer | {"reason": error.reason, "error": words}
            if payload is None:
                words = f"its object was not kept, and {letter.source_name} has the key no more: drop it here"
                return answer | {"reason": "gone-at-source", "error": words}
            letter = replace(letter, payload=payload, size=len(payload))
        return answer | await self._push(letter)

    async def settle(self, after: int, count: int) -> tuple[int, int]:
        """Remove dead letters whose object, or one that has seen it, is in this cluster by now. Checks the next `count`
        letters after number `after`: (how many were removed, the number to go on from, 0 after the last). Letters
        without an object are left for operators. Raises LocalFault."""
        letters = await asyncio.to_thread(self._letters.next_kept, after, count)
        found = await self._kv.get_batch([letter.key for letter in letters], None, SETTLED_BYTES, waits=False)
        removed = 0
        for letter, here in zip(letters, found, strict=True):
            if isinstance(here, bytes) and letter.payload is not None and _has_seen(here, letter.payload):
                await asyncio.to_thread(self._letters.replace, letter, None)
                log.info("sink.dead_letter_settled", id=letter.id, queue=letter.queue, source=letter.source_name)
                removed += 1
        return removed, letters[-1].id if len(letters) == count else 0

    async def _push(self, letter: DeadLetter) -> dict[str, Any]:
        assert letter.payload is not None
        (result,) = await self._kv.push([PushItem(letter.key, letter.source, letter.payload)])
        answer: dict[str, Any] = {"outcome": result.outcome.value}
        if result.error is not None:
            answer |= {"reason": result.error.reason, "error": str(result.error)}
        if result.outcome is PushOutcome.REJECTED and result.error is not None:
            now_ms = self._time.wall_ms()
            again = replace(letter, at_ms=now_ms, reason=result.error.reason, error=str(result.error))
            await asyncio.to_thread(self._letters.replace, letter, again)
        elif result.outcome is not PushOutcome.FAILED:
            await asyncio.to_thread(self._letters.replace, letter, None)
        return answer

    async def _fetch_object(self, letter: DeadLetter) -> bytes | None:
        """The object as the source has it now. Raises PeerFault, CodecError: the error of the last node."""
        body = encode_asking(ObjectRequest(self._local.cluster, self._local.cluster_name, letter.key))
        fault: IsthmusError = PeerFault(
            f"no link of queue {letter.queue} leads to cluster {letter.source_name} ({letter.source.hex()}) now"
        )
        for peer in self._peers.peers_of(letter.queue, letter.source, letter.peer):
            try:
                answer = await peer.post(
                    f"/queues/{quote(letter.queue, safe='')}/object",
                    body,
                    media_type=MEDIA_TYPE,
                    timeout_ms=self._timeout_ms,
                    limit_bytes=ANSWER_OVERHEAD_BYTES + ANSWER_HEAD_BYTES,
                )
                reply = await asyncio.to_thread(decode_object_reply, answer)
            except IsthmusError as error:
                fault = error
                continue
            if reply.cluster == letter.source:
                return reply.payload
            fault = WrongSourceCluster(f"{peer.url} answers for cluster {reply.cluster_name} ({reply.cluster.hex()})")
        raise fault
