"""A node's part of a support bundle."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

from isthmus.config.loader import load_file
from isthmus.node.observability.logs import LAST_BYTES_MAX, LINE_KEPT_MAX, LineSink
from isthmus.node.services.support_query import SUPPORT, SupportResponder

SAMPLE = Path(__file__).parents[4] / "config" / "samples" / "node.toml"
PLANTED = "planted-token-0123456789"


async def test_a_nodes_part_has_config_log_and_metrics_without_secrets() -> None:
    """A token that the node sends to others is removed everywhere; the part survives its encoding."""
    lines = LineSink()
    lines.msg(f"asked with {PLANTED}")
    lines.msg('{"event": "isr.ready"}')
    credentials = SimpleNamespace(secrets=lambda: [PLANTED])

    async def exposition() -> bytes:
        return f'isthmus_x{{of="{PLANTED}"}} 1\n'.encode()

    responder = SupportResponder(load_file(SAMPLE), credentials, lines, exposition)  # type: ignore[arg-type]
    part = await responder.respond(None)
    assert part.log == ["asked with ***", '{"event": "isr.ready"}']
    assert part.metrics == 'isthmus_x{of="***"} 1\n'
    assert "node.name" in {path for path, _, _ in part.config}
    assert SUPPORT.answers.decode(SUPPORT.encode_answer(None, part)) == part


async def test_the_event_loop_runs_meanwhile() -> None:
    """A thread removes the secrets: no request waits for it."""
    lines = LineSink()
    for number in range(200):
        lines.msg(f"{number}" + "some words of a log line, token=abcdef " * 30)
    credentials = SimpleNamespace(secrets=lambda: [PLANTED])

    async def exposition() -> bytes:
        return b""

    responder = SupportResponder(load_file(SAMPLE), credentials, lines, exposition)  # type: ignore[arg-type]
    asked = asyncio.create_task(responder.respond(None))
    turns = 0
    while not asked.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 5
    assert "abcdef" not in "".join((await asked).log)


def test_the_last_lines_are_bounded() -> None:
    """At most LAST_BYTES_MAX characters are kept, the newest, and the begin of a long line."""
    lines = LineSink()
    for number in range(100):
        lines.msg(f"{number:03}" + "x" * (LINE_KEPT_MAX + 5))
    kept = lines.last()
    assert sum(map(len, kept)) <= LAST_BYTES_MAX
    assert kept[-1].startswith("099")
    assert {len(line) for line in kept} == {LINE_KEPT_MAX}
