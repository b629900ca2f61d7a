"""Peers that are slow, fail, or lie cost their own link's time, and never a key of this cluster."""

from __future__ import annotations

import base64
import time
from pathlib import Path

import pytest

from isthmus.repl.model.objects import Content, encode_object, write
from isthmus.repl.model.vclock import actor_of, decode_clock
from tests.system.faults.load import Connection
from tests.system.replication.clusters import BUCKET, Clusters, eventually, key_path, put
from tests.system.replication.faulty_source import LIAR, Item, link_to, peer_lines, running_faulty_source


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_bad_peers_neither_delay_nor_damage_other_links(tmp_path: Path) -> None:
    """While a second peer is slow, fails, or sends garbage, too much or too slowly, the good peer's changes arrive
    within seconds; the bad link shows its error, and recovers. What is no object or too large becomes a dead letter; a
    clock with writes that were never made lets the partition take another actor, and later writes are not lost."""
    with running_faulty_source() as source:
        peer = peer_lines(source) + '[limits]\nobject_size = "1MB"\n'
        sinks = 'request_timeout = "2s"\nworkers = 4'
        with Clusters(tmp_path, (("east", "west"),), sinks=sinks, more_peers={"west": peer}) as clusters:
            for way in ("slow", "error", "malformed", "oversize", "trickle"):
                source.way = way
                if way == "malformed":
                    eventually("it says so", lambda: link_to(clusters)["last_error_reason"] == "malformed", 30)
                else:
                    before = link_to(clusters)["errors"]
                    eventually(f"{way} fails", lambda b=before: link_to(clusters)["errors"] > b, 40)
                began = time.monotonic()
                for number in range(20):
                    put(clusters.node("east").place, f"{way}{number}", b"x")
                eventually("the good peer's come", lambda: clusters.drained("east", "west"), 30)
                took_s = time.monotonic() - began
                assert took_s < 15, f"held up for {took_s:.1f} s by a peer that is {way}"
            source.items = lies(clusters)
            source.way = "items"
            eventually("the batch is acknowledged", source.acknowledged.is_set, 60)
            assert link_to(clusters)["errors_in_a_row"] == 0
            letters = clusters.see("west", "/admin/sink/dead-letters")["dead_letters"]
            assert {letter["key"][2]: letter["reason"] for letter in letters} == {
                "garbage": "malformed", "large": "too-large"
            }  # fmt: skip
            put(clusters.node("west").place, "mine", b"later")
            contents = clusters.contents("west")
            assert "later" in contents["mine"][2]
            assert contents["honest"][2] == ["said"]
            assert not {"garbage", "large"} & contents.keys()


def lies(clusters: Clusters) -> list[Item]:
    """Changes of the faulty source: a clock with writes that west never made, bytes that are not an object, an object
    larger than west accepts (twice `limits.object_size` and 1 MB), and an honest one."""
    west = clusters.node("west").place
    put(west, "mine", b"true")
    connection = Connection(west)
    reply = connection.request("GET", key_path("mine"), {})
    connection.close()
    ((actor, counter, at_s),) = decode_clock(base64.b64decode(reply.headers["X-Riak-Vclock"]))
    dot = (actor_of(LIAR, 0), 1)
    forged = write(None, ((actor, counter + 1_000_000, at_s),), Content(b"forged"), dot, 5)
    large = write(None, (), Content(b"x" * 4_000_000), (actor_of(LIAR, 0), 2), 5)
    honest = write(None, (), Content(b"said"), (actor_of(LIAR, 0), 3), 5)
    made = {
        b"mine": encode_object(forged),
        b"garbage": b"\x93no object",
        b"large": encode_object(large),
        b"honest": encode_object(honest),
    }
    return [
        (0, 0, number, b"default", BUCKET.encode(), key, LIAR, 1, payload)
        for number, (key, payload) in enumerate(made.items())
    ]
