"""One fetch: what a slot tells the source, and what it makes of the answer.

A slot acknowledges its last batch with its next fetch. It also says which batches it still works on (none, when it
fetches): what the source believes to be with this slot and is not, was lost on the way and comes again
at once instead of after its lease.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from config.settings import SinkSettings
from queues.batches import Session
from queues.wire import MEDIA_TYPE, Ack, FetchReply, FetchRequest, decode_reply, encode_request
from repl.transport.http_client import HttpPeer

ANSWER_OVERHEAD_BYTES: Final = 200_000_000
"""How much an answer may exceed the batch bytes asked for: a single larger object still comes (50 MB and its
siblings, as far as the source's own limits let it), and each change costs up to 10 KB of names."""


class Fetcher:
    """One slot's side of one queue at one peer; for one thread at a time. `peer` may be shared by slots."""

    def __init__(self, peer: HttpPeer, queue: str, session: Session, cluster_name: str, settings: SinkSettings) -> None:
        self._peer = peer
        self._path = f"/queues/{quote(queue, safe='')}/fetch"
        self._session = session
        self._cluster_name = cluster_name
        self._settings = settings
        self.ack: Ack | None = None
        """What became of the last batch; goes with the next fetch and stays until that was answered."""

    def fetch(self) -> FetchReply:
        """The next batch, after a long poll if there is none. Raises PeerFault, CodecError."""
        return self._post(self._settings.batch_count, self._settings.poll_ms)

    def acknowledge(self) -> None:
        """Send a waiting acknowledgement by itself, when the next fetch may be far. Raises PeerFault, CodecError."""
        if self.ack is not None:
            self._post(0, 0)

    def _post(self, max_count: int, wait_ms: int) -> FetchReply:
        settings = self._settings
        request = FetchRequest(
            self._session,
            self._cluster_name,
            () if self.ack is None else (self.ack,),
            (),
            max_count,
            settings.batch_bytes,
            wait_ms,
        )
        body = self._peer.post(
            self._path,
            encode_request(request),
            media_type=MEDIA_TYPE,
            timeout_ms=settings.request_timeout_ms + wait_ms,
            limit_bytes=settings.batch_bytes + ANSWER_OVERHEAD_BYTES,
        )
        reply = decode_reply(body)
        self.ack = None
        return reply
