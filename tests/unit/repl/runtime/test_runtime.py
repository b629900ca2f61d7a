"""Reports of a node's runtime to the controller above it."""

from __future__ import annotations

from types import SimpleNamespace

from isthmus.repl.clock import SystemTime
from isthmus.repl.isr.replica_state import ReplicaOptions
from isthmus.repl.runtime.node_data import NodeData, RuntimeSettings
from isthmus.repl.runtime.runtime import Runtime, RuntimeListeners
from tests.support.memory_log import MemoryLog
from tests.support.memory_store import MemoryStore


async def test_a_new_session_makes_the_controller_read() -> None:
    """It takes part again from now on, so it reads and decides at once, not at its next poll."""
    woken: list[str] = []
    runtime = Runtime(
        RuntimeSettings("n1", b"east-cluster-016", 1_000_000, 1_000_000, 1_000, 1_000, lambda _: ReplicaOptions()),
        NodeData(SimpleNamespace(), MemoryStore(), MemoryLog()),  # type: ignore[arg-type]
        RuntimeListeners(SimpleNamespace(wake=lambda: woken.append("read")), SimpleNamespace(), woken.append),  # type: ignore[arg-type]
        metastore=SimpleNamespace(),  # type: ignore[arg-type]
        registrar=SimpleNamespace(watch=lambda _runtime: None),  # type: ignore[arg-type]
        links=SimpleNamespace(),  # type: ignore[arg-type]
        time=SystemTime(),
    )
    assert woken == []
    runtime.session_started(7)
    assert woken == ["read"]
