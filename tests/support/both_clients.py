"""`Client`, and `AsyncClient` behind blocking calls: the same tests run on both clients."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from isthmus.client import AsyncClient, Client


class BlockingAsyncClient:
    """The methods of an `AsyncClient`, for any thread; its event loop has a thread of its own."""

    def __init__(self, urls: Any, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        try:
            self._client = self._wait(self._make(urls, options))
        except BaseException:
            self._end()
            raise

    def __enter__(self) -> BlockingAsyncClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)

        def call(*given: Any, **named: Any) -> Any:
            made = method(*given, **named)
            return self._wait(made) if inspect.iscoroutine(made) else self._wait(_all(made))

        return call

    def close(self) -> None:
        if self._loop.is_running():
            self._wait(self._client.close())
            self._end()

    async def _make(self, urls: Any, options: Any) -> AsyncClient:
        return AsyncClient(urls, **options)

    def _wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


async def _all(names: AsyncIterator[str]) -> list[str]:
    return [name async for name in names]


MakeClient = Callable[..., Any]
"""Makes a client of one kind, which ends with the test."""


@pytest.fixture(params=[Client, BlockingAsyncClient], ids=["threads", "asyncio"])
def make_client(request: pytest.FixtureRequest) -> Iterator[MakeClient]:
    """`make_client(urls, **options)`, for each kind of client."""
    made: list[Any] = []

    def make(urls: Any, **options: Any) -> Any:
        made.append(request.param(urls, **options))
        return made[-1]

    yield make
    for client in made:
        client.close()
