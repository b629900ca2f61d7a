"""Retries dead letters on an operator's request, and removes those whose keys were settled otherwise.

An object that was not kept is requested by its key from a node of the source cluster; the answer is the object as it is
there now, which has seen the refused one. A Riak is asked to put the key into its queue once more, also for an answer
that cannot be decoded; the letter goes once the object is stored. A dead letter that is accepted is removed; one that
is refused again stays, with the new reason and the newer object; one that a newer refusal of its key has replaced
meanwhile does not change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final, Protocol
from urllib.parse import quote

import msgspec
import structlog

from isthmus.queues.riak_origin import is_of_riak, origin_of
from isthmus.queues.wire import ANSWER_HEAD_BYTES, MEDIA_TYPE, ObjectRequest, decode_object_reply, encode_asking
from isthmus.repl.http.async_client import AsyncHttpPeer
from isthmus.repl.model.errors import BadInput, CodecError, IsthmusError, PeerFault, Retryable
from isthmus.repl.model.objects import encode_object, summarize_encoded
from isthmus.repl.model.ports import KeyValue, TimeSource
from isthmus.repl.model.requests import PushItem, PushOutcome
from isthmus.repl.model.vclock import decode_clock, descends
from isthmus.sink.dead_letters import DeadLetter, DeadLetters
from isthmus.sink.fetch import ANSWER_OVERHEAD_BYTES, LocalCluster, WrongSourceCluster
from isthmus.sink.riak_answers import clock_of_letter, is_unnamed, raw_answer, read_answer
from isthmus.sink.riak_requests import send_again_path

log = structlog.get_logger(__name__)

SETTLED_BYTES: Final = 64_000_000
"""Bytes of objects that are read at once to check dead letters; the next round checks the others."""


DISPATCHED_BYTES_MAX: Final = 10_000
"""Longest answer of a Riak to a request that puts a key into a queue: it has one number."""

NOT_STORED: Final = "not-stored"
"""Reason of letters of changes that were in hand when a node stopped."""


class Dispatched(msgspec.Struct):
    """A Riak's answer to a request that puts keys into a queue."""

    dispatched_count: int


class SentAgain(Retryable):
    """A Riak was asked to send the key of a dead letter again."""

    reason = "asked-again"


class GoneAtSource(BadInput):
    """The source has the key of a dead letter no more."""

    reason = "gone-at-source"


class SourcePeers(Protocol):
    """Nodes of source clusters; `sink.worker_pool.WorkerPool`."""

    def peers_of(self, queue: str, cluster: bytes, best: str) -> Iterable[AsyncHttpPeer]:
        """Nodes of a cluster that a queue is fetched from, the one at URL `best` first."""


def _has_seen(here: bytes, refused: bytes) -> bool:
    """Whether the object here has seen all of the refused one; False if one of them cannot be decoded."""
    try:
        return descends(decode_clock(summarize_encoded(here).clock), clock_of_letter(refused))
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
        if is_of_riak(letter.source):
            try:
                letter = await self._of_riak(letter)
            except IsthmusError as error:
                return answer | {"reason": error.reason, "error": str(error)}
        elif letter.payload is None:
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

    async def _of_riak(self, letter: DeadLetter) -> DeadLetter:
        """The letter with an object that can be pushed. Raises SentAgain where the Riak was asked for it instead, and
        IsthmusError."""
        raw = None if letter.payload is None else raw_answer(letter.payload)
        if letter.payload is not None and raw is None:
            return letter
        found = None if raw is None else await asyncio.to_thread(read_answer, raw, ANSWER_OVERHEAD_BYTES)
        if found is not None and found.stored is not None:
            payload = encode_object(found.stored)
            return replace(letter, key=found.key, payload=payload, size=len(payload))
        if is_unnamed(letter.key):
            raise BadInput(f"its key cannot be read: drop it, and seed its bucket (isthmus riak seed): {letter.error}")
        path = send_again_path(letter.queue, letter.key)
        fault: IsthmusError = PeerFault(f"no link of queue {letter.queue} leads to the Riak {letter.source_name} now")
        for peer in self._peers.peers_of(letter.queue, letter.source, letter.peer):
            try:
                body = await peer.get(path, timeout_ms=self._timeout_ms, limit_bytes=DISPATCHED_BYTES_MAX)
                count = msgspec.json.decode(body, type=Dispatched).dispatched_count
            except IsthmusError as error:
                fault = error
                continue
            except (ValueError, RecursionError) as error:
                fault = PeerFault(f"{peer.url} answers another form than a Riak's: {error!s:.200}")
                continue
            if not count:
                raise GoneAtSource(f"{letter.source_name} has the key no more: drop it here")
            raise SentAgain(
                f"{letter.source_name} was asked to send the key again: the letter goes once the object is stored"
            )
        raise fault

    async def unfinished(self) -> bool:
        """Push the letters of changes that were in hand when a node stopped; whether some are left to be tried."""
        numbers = await asyncio.to_thread(self._letters.of_reason, NOT_STORED)
        answers = [await self.retry(number) for number in numbers]
        return any(one["outcome"] == PushOutcome.FAILED.value for one in answers)

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
        (result,) = await self._kv.push([PushItem(letter.key, origin_of(letter.source), letter.payload)])
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
