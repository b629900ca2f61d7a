"""An `AsyncHttpPeer` behind blocking calls, on a loop like the nodes': the same tests run on both clients."""

from __future__ import annotations

import asyncio
import threading

import uvloop

from isthmus.repl.http.async_client import AsyncHttpPeer
from isthmus.repl.http.client import OPEN, PeerCredentials


class PeerOnLoop:
    """Like `HttpPeer`; `cut` ends the loop, too."""

    def __init__(self, url: str, connections: int = 1, access: PeerCredentials = OPEN) -> None:
        self._peer = AsyncHttpPeer(url, access)
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.run_until_complete(asyncio.sleep(0.01))
        self._loop.close()

    def post(self, path: str, body: bytes, *, media_type: str, timeout_ms: int, limit_bytes: int) -> bytes:
        asked = self._peer.post(path, body, media_type=media_type, timeout_ms=timeout_ms, limit_bytes=limit_bytes)
        if self._loop.is_closed():
            return asyncio.run(asked)
        return asyncio.run_coroutine_threadsafe(asked, self._loop).result(30)

    def abort(self) -> None:
        if self._loop.is_closed():
            return

        def end() -> None:
            self._peer.abort()
            self._loop.call_later(0.05, self._loop.stop)

        self._loop.call_soon_threadsafe(end)
        self._thread.join()
