"""What one node of three answers for all of them, through its admin listener, in virtual time."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections import Counter
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from isthmus.node.daemon import EXIT_STORAGE, Node
from isthmus.node.observability.version import program_version
from isthmus.queues.lag import LagMemory, QueueReading
from isthmus.repl.model.errors import LocalFault
from tests.simulation.world.node import HTTP_PORT
from tests.simulation.world.three_nodes import (
    cut_off,
    exchange,
    get,
    get_bytes,
    lived,
    on_its_loop,
    short_lived_world,
    world,
)
from tests.simulation.world.world import World
from tests.support.waiting import eventually

__all__ = ("short_lived_world", "world")

READY_S = 60.0


def test_any_node_shows_version_and_disk_of_all(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each node reports its own version and disk; a node whose links do not answer is null, with the reason."""

    async def claim(nodes: dict[str, Node]) -> None:
        n1, silent = nodes["east-1"], "east-3"
        status, answer = await get(n1, "/admin/nodes/health")
        assert (status, sorted(answer["nodes"]), answer["unknown"]) == (200, sorted(nodes), {})
        for health in answer["nodes"].values():
            assert health["version"] == program_version()
            assert 0 < health["free_bytes"] < health["total_bytes"]
            assert (health["certificates"], health["problems"]) == ({}, [])
        cut_off(n1, silent, monkeypatch)
        answer = (await get(n1, "/admin/nodes/health"))[1]
        assert (answer["nodes"][silent], answer["unknown"]) == (None, {silent: f"not-ready: no connection to {silent}"})
        assert answer["nodes"]["east-2"]["version"] == program_version()

    lived(world, claim)


def test_any_node_collects_a_support_bundle_of_all(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each node gives its own settings, log and metrics; a node whose links do not answer is null, with the reason."""

    async def claim(nodes: dict[str, Node]) -> None:
        n1, silent = nodes["east-1"], "east-3"
        status, answer = await get(n1, "/admin/support")
        assert (status, answer["unknown"]) == (200, {})
        for name in nodes:
            assert ["node.name", f'"{name}"'] in [row[:2] for row in answer["nodes"][name]["config"]]
            assert "isthmus_journal_events_total" in answer["nodes"][name]["metrics"]
        cut_off(n1, silent, monkeypatch)
        answer = (await get(n1, "/admin/support"))[1]
        assert (answer["nodes"][silent], [*answer["unknown"]]) == (None, [silent])

    lived(world, claim)


def test_any_node_has_the_events_of_all(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Acts and events of all nodes in order of time; one that does not answer is named; a wrong kind is refused."""

    async def claim(nodes: dict[str, Node]) -> None:
        n1, n2 = nodes["east-1"], nodes["east-2"]
        act = {"at_ms": 2_000, "who": {"by": "ann"}, "what": {"act": "drain"}, "outcome": "done", "via": "cli"}
        on_its_loop(world, n2, lambda: n2.services.journal.enqueue(act))

        async def acts() -> tuple[int, Any] | None:
            found = await get(n1, "/admin/events?kind=act")
            return found if found[0] != 200 or found[1]["events"] else None

        status, answer = await eventually(acts, "the act is recorded")
        assert (status, answer["unknown"]) == (200, {})
        assert [(each["node"], each["event"], each["text"]) for each in answer["events"]] == [
            ("east-2", "drain", "done, by ann (cli)")
        ]
        status, answer = await get(n1, "/admin/events?since=3000&limit=5")
        assert (status, [each for each in answer["events"] if each["kind"] == "act"]) == (200, [])
        assert [each["at_ms"] for each in answer["events"]] == sorted(each["at_ms"] for each in answer["events"])
        status, answer = await get(n1, "/admin/events?kind=gossip")
        assert (status, answer["reason"]) == (400, "bad-query")
        status, answer = await get(n1, "/admin/events?node=east-2&kind=act")
        assert (status, {each["node"] for each in answer["events"]}) == (200, {"east-2"})
        assert (await get(n1, "/admin/events?node=east-3&kind=act"))[1]["events"] == []
        assert (await get(n1, "/admin/events?kind=act&last=60000"))[1]["events"] == [], "older, by the node's clock"
        status, answer = await get(n1, "/admin/events?node=n9")
        assert (status, answer["reason"]) == (404, "unknown-node")
        cut_off(n1, "east-3", monkeypatch)
        answer = (await get(n1, "/admin/events"))[1]
        assert answer["unknown"] == {"east-3": "not-ready: no connection to east-3"}

    lived(world, claim)


def test_a_scrape_reads_no_lag_again_that_the_findings_had_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that reports findings reads its queues' lags as often for a scrape as for the findings; another node,
    which judges nothing, once."""
    read, memories = LagMemory.read, list[LagMemory]()

    async def counted(memory: LagMemory, *given: Any) -> dict[str, QueueReading]:
        memories.append(memory)
        return await read(memory, *given)

    async def reads(node: Node, path: str) -> int:
        await asyncio.sleep(2)
        memories.clear()
        assert (await get_bytes(node, path))[0] == 200
        return memories.count(node.services.queue_acts._lag_memory)

    async def claim(nodes: dict[str, Node]) -> None:
        monkeypatch.setattr(LagMemory, "read", counted)
        assert await reads(nodes["east-1"], "/metrics") == await reads(nodes["east-1"], "/admin/findings") > 0
        assert await reads(nodes["east-3"], "/metrics") == 1

    lived(world, claim)


def test_the_first_two_nodes_show_the_findings_of_all(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metric counts what `GET /admin/findings` lists, by code, severity and subject: none while all is well, and of
    a node whose links do not answer that it is silent. The third node leaves it to the others."""

    async def counts(node: Node) -> dict[tuple[str, ...], float]:
        status, body = await get_bytes(node, "/metrics")
        assert status == 200
        families = text_string_to_metric_families(body.decode())
        samples = [sample for family in families for sample in family.samples if sample.name == "isthmus_findings"]
        return {
            tuple(sample.labels[name] for name in ("code", "severity", "subject")): sample.value for sample in samples
        }

    async def claim(nodes: dict[str, Node]) -> None:
        n1, silent = nodes["east-1"], "east-3"
        answer = (await get(n1, "/admin/findings"))[1]
        assert (answer["findings"], await counts(n1)) == ([], {})
        cut_off(n1, silent, monkeypatch)
        await asyncio.sleep(2)
        listed = (await get(n1, "/admin/findings"))[1]["findings"]
        assert {row["code"] for row in listed} >= {"node-silent"}
        expected = Counter((row["code"], row["severity"], row["subject"]) for row in listed)
        assert await counts(n1) == expected
        assert await counts(nodes["east-2"]) == {}, "nothing is wrong as it sees it"
        assert await counts(nodes[silent]) == {}

    lived(world, claim)


def test_the_failure_that_ends_a_node_is_an_event(short_lived_world: World) -> None:
    """A node whose storage has failed ends at once; its journal has that, after the next start."""
    world = short_lived_world
    node = world.clusters["east"].nodes["east-2"]

    async def fail(nodes: dict[str, Node]) -> None:
        on_its_loop(world, nodes["east-2"], lambda: nodes["east-2"]._on_fatal(LocalFault("the log cannot be written")))

    async def claim(nodes: dict[str, Node]) -> None:
        answer = (await get(nodes["east-1"], "/admin/events?node=east-2&kind=node"))[1]
        (failed,) = (each for each in answer["events"] if each["event"] == "node.failed")
        assert (failed["level"], "the log cannot be written" in failed["text"]) == ("critical", True)

    lived(world, fail)
    world.run_until(lambda: not node.machine.alive, 1.0, "the node ends")
    assert node.machine.exit_code == EXIT_STORAGE
    node.start()
    world.run_until(world.all_ready, READY_S, "the node is back")
    lived(world, claim)


def test_events_of_a_node_survive_its_end(short_lived_world: World) -> None:
    """A node that is killed and started again still has the events of the process before, each with the id that it had,
    and any node shows them."""
    world = short_lived_world
    before: list[dict[str, Any]] = []

    async def events(nodes: dict[str, Node]) -> list[dict[str, Any]]:
        status, answer = await get(nodes["east-1"], "/admin/events?node=east-2&limit=1000")
        assert (status, answer["unknown"]) == (200, {})
        return list(answer["events"])

    async def first(nodes: dict[str, Node]) -> None:
        before.extend(await events(nodes))

    async def second(nodes: dict[str, Node]) -> None:
        after = await events(nodes)
        assert after[: len(before)] == before
        assert "node.up" in {each["event"] for each in before}
        assert "node.up" in {each["event"] for each in after[len(before) :]}

    lived(world, first)
    node = world.clusters["east"].nodes["east-2"]
    node.machine.kill()
    node.start()
    world.run_until(world.all_ready, READY_S, "the node is back")
    lived(world, second)


def test_any_node_answers_riaks_folds_for_all(short_lived_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket whose keys are led by all three nodes is counted, and its erasure carried out, by whichever is asked. A
    fold whose node cannot reach a leader is 503 after its time, with the reason."""

    async def claim(nodes: dict[str, Node]) -> None:
        n1, silent = nodes["east-1"], "east-3"
        for n in range(24):
            head = f"PUT /buckets/folded/keys/k{n:02} HTTP/1.1\r\nContent-Type: a/b\r\nContent-Length: 1\r\n"
            assert (await exchange(n1, head, b"x", port=HTTP_PORT))[0] == 204
        for node in nodes.values():
            status, answer = await get(node, "/objectstats/buckets/folded", HTTP_PORT)
            assert (status, answer["total_count"]) == (200, 24)
        span = b64encode(b'{"change_method": "local", "key_range": {"start": "k00", "end": "k09"}}').decode()
        status, answer = await get(nodes["east-2"], f"/erase/buckets/folded?filter={span}", HTTP_PORT)
        assert (status, answer) == (200, {"dispatched_count": 10})
        status, answer = await get(n1, "/objectsizes/buckets/folded/sizes/1", HTTP_PORT)
        assert [row["key"] for row in answer["results"]] == [f"k{n}" for n in range(10, 24)]
        cut_off(n1, silent, monkeypatch)
        status, answer = await get(n1, "/objectstats/buckets/folded?timeout=2000", HTTP_PORT)
        assert (status, answer["reason"]) == (503, "timeout")
        assert answer["error"] == f"the fold was not done within 2 s: not-ready: no connection to {silent}"

    lived(short_lived_world, claim)
