"""A store for web sessions, in asyncio. Run: python examples/sessions.py [URL ...]

A session is a small dict that many requests change at once. Writes of one cluster never conflict, since `update`
repeats them; those of two clusters are merged by `merge`. Sessions that are over are deleted on the condition that
nobody has used them meanwhile. The program has a bucket of its own, `examples-sessions`.
"""

import asyncio
import contextlib
import secrets
import sys
import time
from collections.abc import Sequence
from typing import Any

from isthmus.client import AsyncClient, Conflict, Sibling

BUCKET = "examples-sessions"
LIFETIME_S = 1800.0


def merge(siblings: Sequence[Sibling]) -> dict[str, Any]:
    """One session of concurrent ones: all names, each with the value of the session that was used last."""
    alive = [sibling.value for sibling in siblings if not sibling.deleted]
    merged: dict[str, Any] = {}
    for session in sorted(alive, key=lambda session: session["used_s"]):
        merged |= session
    return merged


class Sessions:
    """Sessions in a cluster. The client is made with `resolve=merge`."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def create(self, user: str) -> str:
        """A new session; its id."""
        session_id = secrets.token_urlsafe(24)
        await self._client.put(BUCKET, session_id, {"user": user, "used_s": time.time()}, if_absent=True)
        return session_id

    async def change(self, session_id: str, **values: Any) -> dict[str, Any]:
        """Set values; the whole session. Raises KeyError for one that does not exist or is over."""

        def apply(session: dict[str, Any] | None) -> dict[str, Any]:
            if session is None or time.time() - session["used_s"] > LIFETIME_S:
                raise KeyError(session_id)
            return {**session, **values, "used_s": time.time()}

        updated = await self._client.update(BUCKET, session_id, apply)
        session: dict[str, Any] = updated.value
        return session

    async def delete_old(self, now_s: float) -> int:
        """Delete the sessions that are over at `now_s`; their number."""
        count = 0
        async for session_id in self._client.list_keys(BUCKET):
            session = await self._client.find(BUCKET, session_id)
            if session is not None and now_s - session.value["used_s"] > LIFETIME_S:
                with contextlib.suppress(Conflict):  # it was used meanwhile
                    count += await self._client.delete(BUCKET, session_id, context=session, if_unchanged=True)
        return count


async def main(urls: list[str]) -> None:
    """Create a session, change it from many tasks, let it end."""
    async with AsyncClient(urls, resolve=merge) as client:
        sessions = Sessions(client)
        session_id = await sessions.create("ann")
        await asyncio.gather(*(sessions.change(session_id, **{f"page_{number}": number}) for number in range(10)))
        session = await sessions.change(session_id)
        print(f"{session['user']} has seen {sum(name.startswith('page_') for name in session)} pages")
        print(f"{await sessions.delete_old(time.time() + 2 * LIFETIME_S)} session deleted")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:] or ["http://127.0.0.1:18098"]))
