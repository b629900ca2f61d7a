"""Dead letters pushed once more, when an operator says that they would be taken now.

An object that was not kept is asked for by its key, at a node of the source that the sink fetches this queue from;
what comes is the object as it is there now, which has seen what was refused. What is taken is no dead letter any more;
what is refused again stays, with the new reason and the newer object; a letter that a newer refusal of its key has
replaced meanwhile is left as it is. Asked for by `sink.service`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final
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
"""Objects that are read at once to see whether letters are settled; of what is beyond, the next round knows."""

Peers = Callable[[str, bytes, str], Iterable[AsyncHttpPeer]]
"""(queue, source cluster's uuid, URL that is best) -> nodes of that cluster to ask, the best first."""


def _has_seen(here: bytes, refused: bytes) -> bool:
    """Whether the object that is here has seen all of the refused one; one that cannot be read has not."""
    try:
        return descends(decode_clock(summarize_encoded(here).clock), decode_clock(summarize_encoded(refused).clock))
    except CodecError:
        return False


class DeadLetterRetry:
    """See the module's text. `timeout_ms` bounds each wait for a source."""

    def __init__(
        self, letters: DeadLetters, *, kv: KeyValue, time: TimeSource, home: LocalCluster, peers: Peers, timeout_ms: int
    ) -> None:
        self._letters = letters
        self._kv = kv
        self._time = time
        self._home = home
        self._peers = peers
        self._timeout_ms = timeout_ms

    async def retry(self, number: int) -> dict[str, Any]:
        """{"id", "outcome", "reason", "error"} of one letter. Raises LocalFault."""
        answer: dict[str, Any] = {"id": number, "outcome": None, "reason": None, "error": None}
        letter = await asyncio.to_thread(self._letters.find, number)
        if letter is None:
            return answer | {"reason": "unknown-letter", "error": f"there is no dead letter {number}"}
        if letter.payload is None:
            try:
                payload = await self._asked_for(letter)
            except IsthmusError as error:
                words = f"its object of {letter.size} bytes was not kept, and the source did not give it: {error}"
                return answer | {"reason": error.reason, "error": words}
            if payload is None:
                words = f"its object was not kept, and {letter.source_name} has the key no more: drop it here"
                return answer | {"reason": "gone-at-source", "error": words}
            letter = replace(letter, payload=payload, size=len(payload))
        return answer | await self._pushed(letter)

    async def settled(self, after: int, count: int) -> tuple[int, int]:
        """Forget letters whose key was settled otherwise: this cluster has the object by now, or one that has seen it,
        whichever way it came. (How many, the number to go on from) of the next `count` letters behind `after`; 0 once
        there are no more. A letter whose object is not kept is left for people. Raises LocalFault."""
        letters = await asyncio.to_thread(self._letters.next_kept, after, count)
        found = await self._kv.get_batch([letter.key for letter in letters], None, SETTLED_BYTES, waits=False)
        settled = 0
        for letter, here in zip(letters, found, strict=True):
            if isinstance(here, bytes) and letter.payload is not None and _has_seen(here, letter.payload):
                await asyncio.to_thread(self._letters.replace, letter, None)
                log.info("sink.dead_letter_settled", id=letter.id, queue=letter.queue, source=letter.source_name)
                settled += 1
        return settled, letters[-1].id if len(letters) == count else 0

    async def _pushed(self, letter: DeadLetter) -> dict[str, Any]:
        assert letter.payload is not None
        (result,) = await self._kv.push([PushItem(letter.key, letter.source, letter.payload)])
        told: dict[str, Any] = {"outcome": result.outcome.value}
        if result.error is not None:
            told |= {"reason": result.error.reason, "error": str(result.error)}
        if result.outcome is PushOutcome.REJECTED and result.error is not None:
            now_ms = self._time.wall_ms()
            again = replace(letter, at_ms=now_ms, reason=result.error.reason, error=str(result.error))
            await asyncio.to_thread(self._letters.replace, letter, again)
        elif result.outcome is not PushOutcome.FAILED:
            await asyncio.to_thread(self._letters.replace, letter, None)
        return told

    async def _asked_for(self, letter: DeadLetter) -> bytes | None:
        """The object as the source has it now. Raises PeerFault, CodecError: what the last node that was asked said."""
        body = encode_asking(ObjectRequest(self._home.cluster, self._home.cluster_name, letter.key))
        fault: IsthmusError = PeerFault(
            f"no link of queue {letter.queue} leads to cluster {letter.source_name} ({letter.source.hex()}) now"
        )
        for peer in self._peers(letter.queue, letter.source, letter.peer):
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
