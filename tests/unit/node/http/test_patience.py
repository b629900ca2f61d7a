"""No wait of a node is longer than its client's patience, which travels with the request."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

import isthmus.node.dashboard
from isthmus.aae.folds import fold_rpc
from isthmus.node.admin_api import application as admin_application
from isthmus.node.admin_api import leaders, queues, sinks
from isthmus.node.cli.node_listener import ANSWER_TIMEOUT_S
from isthmus.node.http.answer_limits import RETRY_TIMEOUT_MS, RETRY_WAIT_S
from isthmus.node.http.application import LATE_MAX, HttpApplication, Request, json_reply
from isthmus.node.http.durations import RequestDurations
from isthmus.node.http.fast_connection import read_whole
from isthmus.node.http.patience import HEADER, MARGIN_SHARE, PATIENCE_MS_MAX, answer_by_s, header_of
from isthmus.node.http.responses import Reply
from isthmus.node.services import cluster_query, fullsync_query, repairs
from isthmus.repl.unforeseen import unforeseen
from tests.support.open_access import EVERYBODY

pytestmark = pytest.mark.virtual_time

SLOW_S = 60.0


class Slow(HttpApplication):
    """An application whose one route takes a minute, and what became of it."""

    def __init__(self) -> None:
        super().__init__(EVERYBODY, RequestDurations())
        self.done = 0
        self.router.add("GET", "/slow", self.slow)
        self.router.add("POST", "/slow", self.slow)

    async def slow(self, _request: Request) -> Reply:
        await asyncio.sleep(SLOW_S)
        self.done += 1
        return json_reply({"ok": True})

    async def ask(self, method: str, *headers: tuple[bytes, bytes]) -> tuple[int, str, float]:
        """(status, body, seconds until the answer)."""
        sent: list[dict[str, Any]] = []
        began_s = asyncio.get_running_loop().time()
        ended_s = began_s

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            nonlocal ended_s
            sent.append(message)
            ended_s = asyncio.get_running_loop().time()

        scope = {"method": method, "raw_path": b"/slow", "headers": list(headers), "query_string": b""}
        await self(scope, receive, send)
        body = b"".join(message.get("body", b"") for message in sent[1:]).decode()
        return sent[0]["status"], body, ended_s - began_s


def told(timeout_s: float) -> tuple[bytes, bytes]:
    """The header of a client that waits so long."""
    ((name, value),) = header_of(timeout_s).items()
    return name.lower().encode(), value.encode()


async def test_a_client_that_waits_less_gets_a_sentence_in_time() -> None:
    """Before the client gives up it learns that the answer takes longer: 503 for a question, 504 for an act."""
    app = Slow()
    status, body, took_s = await app.ask("GET", told(20))
    assert (status, took_s) == (503, 18.0)
    assert "no answer within 18 s, as long as this client waits" in body
    status, body, took_s = await app.ask("POST", told(20))
    assert (status, took_s) == (504, 18.0)
    assert "it may still be done" in body
    await asyncio.sleep(SLOW_S)
    assert app.done == 2, "the work went on"


async def test_a_client_that_waits_longer_or_says_nothing_gets_the_answer() -> None:
    """Nothing changes for requests without the header, and for those that are done in time."""
    app = Slow()
    for headers in ((), (told(80),), ((HEADER.lower().encode(), b"soon"),)):
        status, body, took_s = await app.ask("GET", *headers)
        assert (status, json.loads(body), took_s) == (200, {"ok": True}, SLOW_S)


async def test_work_that_nobody_waits_for_is_limited_and_ends_with_the_node() -> None:
    """Beyond LATE_MAX such requests are cancelled; a node that stops cancels them all."""
    app = Slow()
    await asyncio.gather(*(app.ask("GET", told(1)) for _ in range(LATE_MAX + 5)))
    await asyncio.sleep(SLOW_S)
    assert app.done == LATE_MAX
    await app.ask("GET", told(1))
    app.stop()
    await asyncio.sleep(SLOW_S)
    assert app.done == LATE_MAX


@pytest.mark.logs_errors("http.late_bug")
async def test_a_defect_of_work_that_nobody_waits_for_is_counted() -> None:
    """The client has its refusal; what the work raises later is a finding, as any exception that nobody foresaw."""

    class Failing(Slow):
        async def slow(self, _request: Request) -> Reply:
            await asyncio.sleep(SLOW_S)
            raise ValueError("nobody foresaw this")

    status, _, took_s = await Failing().ask("GET", told(20))
    assert (status, took_s) == (503, 18.0)
    await asyncio.sleep(SLOW_S)
    assert any(each.event == "http.late_bug" for each in unforeseen.recent())


def test_only_a_sound_number_of_milliseconds_is_believed() -> None:
    """Anything else counts as no limit; the greatest limit is ten minutes."""
    assert answer_by_s([told(20)]) == 18.0
    assert answer_by_s([]) is None
    for value in (b"", b"0", b"-1", b"1.5", b"1e3", b"9" * 30, b"%d" % (PATIENCE_MS_MAX + 1)):
        assert answer_by_s([(HEADER.lower().encode(), value)]) is None


def test_a_request_with_the_header_takes_the_path_that_keeps_the_time() -> None:
    """The fast path, which has no task, leaves it to the parser."""
    head = b"GET /ping HTTP/1.1\r\nHost: x\r\n"
    assert read_whole(head + b"\r\n", 10_000) is not None
    assert read_whole(head + b"%b: 20000\r\n\r\n" % HEADER.encode(), 10_000) is None


def dashboards(name: str) -> int:
    """A time-out of the dashboard's requests, in ms."""
    source = Path(isthmus.node.dashboard.__file__).parent / "static" / "js" / "api.js"
    text = source.read_text()
    assert HEADER.lower() in text, "the dashboard says how long it waits"
    found = re.search(rf"const {name} = ([0-9_]+);", text)
    assert found is not None
    return int(found[1])


WAITS = {
    "any question to all nodes": (cluster_query.TIMEOUT_MS, "both"),
    "the controller's balance": (leaders.GLANCE_MS, "both"),
    "a part of a support bundle": (admin_application.SUPPORT_TIMEOUT_MS, "command"),
    "an order to a full-sync": (fullsync_query.ORDER_TIMEOUT_MS, "act"),
    "dead letters that are dropped": (sinks.DROP_TIMEOUT_MS, "act"),
    "free space for a push": (queues.PUSH_WAIT_MS, "act"),
    "free space for a fold": (repairs.FOLD_ROOM_WAIT_MS, "command"),
    "a fold's page at another node": (fold_rpc.TIMEOUT_MS, "command"),
}
"""What a node waits for within an operator's request, and who asks: the command line, the dashboard's reads (both), or
the command line and the dashboard's acts."""


@pytest.mark.parametrize(("wait_ms", "who"), WAITS.values(), ids=WAITS.keys())
def test_each_wait_ends_before_its_client_gives_up(wait_ms: int, who: str) -> None:
    """Each wait that has a sentence of its own is over while its client still waits, so that the sentence is shown."""
    patience = [ANSWER_TIMEOUT_S * 1000]
    if who == "both":
        patience.append(dashboards("GET_TIMEOUT_MS"))
    elif who == "act":
        patience.append(dashboards("POST_TIMEOUT_MS"))
    assert wait_ms < min(patience) * (1 - MARGIN_SHARE)


def test_letters_that_are_pushed_again_are_waited_for() -> None:
    """Retries take longer, and their clients wait longer."""
    assert RETRY_TIMEOUT_MS < RETRY_WAIT_S * 1000 * (1 - MARGIN_SHARE)
    assert dashboards("POST_TIMEOUT_MS") * (1 - MARGIN_SHARE) > RETRY_TIMEOUT_MS
