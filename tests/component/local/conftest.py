"""A supervisor run inside the test, cheap children, and clusters of fake nodes."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from isthmus.node.local import supervisor_client
from isthmus.node.local.child_process import ChildSpec, Restart
from isthmus.node.local.supervisor import Spec, Supervisor
from tests.support.waiting import eventually


class SupervisorClient:
    """Sends commands to the supervisor of one directory, as other processes do."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    async def ask(self, verb: str, **fields: Any) -> dict[str, Any]:
        return await asyncio.to_thread(supervisor_client.ask, self.directory, {"do": verb, **fields})

    async def child(self, name: str) -> dict[str, Any]:
        state = await self.ask("status")
        child: dict[str, Any] = state["children"][name]
        return child

    async def pid(self, name: str) -> int:
        process = (await self.child(name))["process"]
        assert process is not None
        return int(process["pid"])

    async def eventually(self, name: str, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The child's state once the condition holds for it."""

        async def reached() -> dict[str, Any] | None:
            child = await self.child(name)
            return child if condition(child) else None

        child: dict[str, Any] = await eventually(reached, f"the state of {name}")
        return child

    async def wait_for_path(self, path: Path, exists: bool = True) -> None:
        """Wait for a file that another process makes or removes."""

        async def reached() -> bool:
            return await asyncio.to_thread(path.exists) is exists

        await eventually(reached, f"{path} {'came' if exists else 'went'}")

    def recorded(self) -> dict[str, Any]:
        """The content of the state file."""
        state: dict[str, Any] = json.loads((self.directory / "state.json").read_bytes())
        return state


Supervised = Callable[[Path, Spec], AbstractAsyncContextManager[SupervisorClient]]


@pytest.fixture
def supervised() -> Supervised:
    """Runs a supervisor on this loop while the body runs; then stops it and everything that it owns."""

    @asynccontextmanager
    async def run(directory: Path, spec: Spec) -> AsyncIterator[SupervisorClient]:
        await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
        task = asyncio.create_task(Supervisor(directory, spec).run())
        client = SupervisorClient(directory)
        await client.wait_for_path(directory / "supervisor.sock")
        try:
            yield client
        finally:
            await asyncio.to_thread(supervisor_client.stop, directory)
            await task

    return run


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[Path]:
    """A directory for a separate supervisor process, which is stopped at the end."""
    yield tmp_path / "launched"
    supervisor_client.stop(tmp_path / "launched")


MakeChild = Callable[..., ChildSpec]


@pytest.fixture
def shell_child(tmp_path: Path) -> MakeChild:
    """A child that runs a line of shell; sleeps by default."""

    def make(
        name: str = "a", line: str = "exec sleep 1000", restart: Restart = Restart.ALWAYS, **more: Any
    ) -> ChildSpec:
        return ChildSpec(
            name, ("/bin/sh", "-c", line), str(tmp_path), str(tmp_path / f"{name}.log"), restart=restart, **more
        )

    return make


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory for clusters of fake nodes and ZooKeepers; its processes are stopped at the end."""

    def fake_zookeeper(name: str, home: Path, port: int, java: object, ensemble: Any = ()) -> ChildSpec:
        return ChildSpec(name, ("sleep", str(100_000 + port)), str(tmp_path), str(tmp_path / f"{name}.log"))

    fake_node = str(Path(__file__).with_name("fake_node.py"))
    monkeypatch.setattr(supervisor_client, "node_command", lambda file: (sys.executable, "-S", fake_node, str(file)))
    monkeypatch.setattr(supervisor_client, "zookeeper_child", fake_zookeeper)
    yield tmp_path / "clusters"
    supervisor_client.stop(tmp_path / "clusters")
