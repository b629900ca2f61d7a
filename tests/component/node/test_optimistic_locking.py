"""Clients of three nodes that update one key by its ETag alone: no update is lost, and none leaves a sibling."""

from __future__ import annotations

import asyncio
import http.client
import json
from pathlib import Path

from tests.support.ensemble_nodes import three_nodes
from tests.support.waiting import PATIENCE_S

PATH = "/buckets/b/keys/counter"
CLIENTS = 6
UPDATES = 8
"""Updates that each client must bring through."""


def update(address: str, count: int) -> int:
    """Raise the number in the object by one, `count` times, with If-Match; returns how often another was faster."""
    lost = 0
    connection = http.client.HTTPConnection(address, timeout=PATIENCE_S)
    try:
        while count:
            connection.request("GET", PATH)
            read = connection.getresponse()
            body = read.read()
            assert read.status == 200, (read.status, body)
            value = json.loads(body)
            headers = {"Content-Type": "application/json", "If-Match": read.headers["ETag"]}
            connection.request("PUT", PATH, json.dumps(value + 1), headers)
            written = connection.getresponse()
            written.read()
            assert written.status in (204, 412), written.status
            count -= written.status == 204
            lost += written.status == 412
    finally:
        connection.close()
    return lost


def exchange(address: str, method: str, body: str | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(address, timeout=PATIENCE_S)
    try:
        connection.request(method, PATH, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


async def test_no_update_by_tag_is_lost_or_leaves_a_sibling(tmp_path: Path) -> None:
    """Read, add one, write with If-Match, again after a 412: the sum of many clients at all nodes is exact, and the
    key never has a sibling."""
    async with three_nodes(tmp_path) as nodes:
        addresses = [node.address for node in nodes.values()]

        assert (await asyncio.to_thread(exchange, addresses[0], "PUT", "0"))[0] == 204
        clients = [asyncio.to_thread(update, addresses[n % 3], UPDATES) for n in range(CLIENTS)]
        lost = sum(await asyncio.gather(*clients))
        assert lost, "the clients did not meet"
        for address in addresses:
            assert await asyncio.to_thread(exchange, address, "GET") == (200, b"%d" % (CLIENTS * UPDATES))
