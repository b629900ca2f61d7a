"""The full-sync actor of a node: the third that every node starts, beside the source and the sink.

It keeps the trees of this node's copies, answers other nodes and other clusters about them, and, where the settings
name clusters to compare with, runs the exchanges. Without such settings it answers only, and says so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Executor
from pathlib import Path

from aae.agreement import Agreement
from aae.keeping import Copy, State, Trees
from aae.local import Handler, Led, LocalTrees
from aae.whole import Members, WholeTrees
from repl.model.ports import TimeSource
from repl.store.port import Store
from repl.telemetry import Sample


class FullSync:
    """The actor. `trees` is an after-apply hook; `whole` answers for the cluster."""

    def __init__(
        self,
        *,
        store: Store,
        directory: Path,
        copies: Callable[[], Sequence[Copy]],
        led: Callable[[bytes], Sequence[Led]],
        members: Members,
        followed: Callable[[], Iterable[tuple[int, tuple[str, ...]]]],
        request: Callable[[str, str, bytes, int], Awaitable[bytes]],
        time: TimeSource,
        read_pool: Executor,
    ) -> None:
        """`directory` holds trees between a clean stop and the next start; the rest as `aae.keeping`, `aae.local` and
        `aae.whole` want it."""
        self.trees = Trees(store, directory=directory, copies=copies, time=time)
        self.local = LocalTrees(self.trees, store, led=led, read_pool=read_pool)
        self.whole = WholeTrees(self.local, members, request)
        self.agreement = Agreement(self.trees, store, led=followed, request=request)

    def request_handlers(self) -> dict[str, Handler]:
        """What other nodes may ask of this one, by method."""
        return {**self.local.request_handlers(), **self.agreement.request_handlers()}

    def start(self) -> None:
        """Before anything is applied: take the saved trees, begin to build the others. Raises LocalFault."""
        self.trees.start()
        self.agreement.start()

    async def stop(self, *, save: bool) -> None:
        """After everything is applied; `save` when the stop is a clean one."""
        await self.agreement.stop()
        await self.trees.stop(save=save)

    def metrics(self) -> list[Sample]:
        """For Prometheus."""
        return self.trees.metrics()

    def status(self) -> dict[str, str]:
        """The actor's state and why: shown as `idle: not configured`."""
        states = [kept.state for kept in self.trees.kept.values()]
        ready = states.count(State.READY)
        trees = f"{ready} of {len(states)} trees ready" if ready < len(states) else f"{ready} trees kept"
        return {"actor": "full-sync", "state": "idle", "reason": f"not configured; {trees}"}
