"""A cut link, absent sinks, overflowing windows, and changes given up on purpose."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.system.faults.load import Connection
from tests.system.faults.network import Network
from tests.system.replication.clusters import BUCKET, Clusters, Writers, eventually, key_path, put, queue_to, values_of

ONE_WAY = (("east", "west"),)
BOTH_WAYS = (*ONE_WAY, ("west", "east"))
WINDOW = 200
CUT_S = 60.0


def put_many(clusters: Clusters, count: int, name: str, cluster: str = "east") -> list[str]:
    """Fresh keys."""
    keys = [f"{name}{number}" for number in range(count)]
    connection = Connection(clusters.node(cluster).place)
    for key in keys:
        reply = connection.request("PUT", key_path(key), {"Content-Type": "text/plain"}, key.encode())
        assert reply.status == 204, reply.reason
    connection.close()
    return keys


def covered(gaps: list[dict[str, object]]) -> int:
    """The offsets that gaps which have ended cover."""
    return sum(int(str(gap["upto_offset"])) - int(str(gap["from_offset"])) for gap in gaps)


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.network
@pytest.mark.timeout(420)
def test_a_link_that_is_cut_for_a_minute_delivers_all_of_it(tmp_path: Path) -> None:
    """No packet passes between two clusters for a minute while both are written to: writes succeed, and once the link
    is back each side gets everything, without a gap."""
    hosts = [f"{name}-{host}" for name in ("east", "west") for host in ("zookeeper", "n1", "n2", "n3")]
    with Network(hosts) as network, Clusters(tmp_path, BOTH_WAYS, nodes=3, network=network) as clusters:
        writers = [
            Writers(name, clusters.by_name[name].places, pause_s=0.06, seed=seed).start()
            for name, seed in (("east", 1), ("west", 9))
        ]
        try:
            time.sleep(2)
            for one in hosts:
                for other in hosts:
                    if one[:4] == "east" and other[:4] == "west":
                        network.cut(one, other)
            before = [len(writer.present) for writer in writers]
            time.sleep(CUT_S)
            assert all(len(w.present) > was for w, was in zip(writers, before, strict=True)), (
                "writes waited for the link"
            )
            network.heal()
            time.sleep(1)
        finally:
            for writer in writers:
                writer.stop()
        clusters.check(writers)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_window_that_overflows_many_times_costs_no_memory_and_no_change(tmp_path: Path) -> None:
    """A sink that is suspended until its queue's window overflows, and for 100 times that: the references in memory
    stay within the limit, and afterwards everything comes, each key once."""
    with Clusters(tmp_path, ONE_WAY, queues={"east": f"queue_limit = {WINDOW}"}) as clusters:
        eventually("the queue has an owner", lambda: clusters.queue_rows("east", "west")[0]["owner"])
        clusters.suspend_sink("west")
        put_many(clusters, WINDOW + 1, "k")
        assert clusters.total("east", "west", "references_in_memory") <= WINDOW
        put_many(clusters, 100 * WINDOW, "m")
        put_many(clusters, WINDOW, "k")
        assert clusters.total("east", "west", "references_in_memory") <= WINDOW
        (row,) = clusters.queue_rows("east", "west")
        # A reference that was in memory when its key was overwritten counts until its turn.
        assert row["waiting"] is None or 101 * WINDOW < row["waiting"] <= 1 + 102 * WINDOW
        clusters.resume_sink("west")
        clusters.check()
        # The second 200 writes of "k" wrote over the first without their clocks, so both went into one key.
        assert clusters.total("east", "west", "acknowledged") == 1 + 101 * WINDOW


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_discard_gives_up_exactly_the_range_of_its_gap(tmp_path: Path) -> None:
    """A queue that discards at its limit records a gap: the changes in it, and no others, are missing at the sink, the
    ledger counts them, and full-sync brings them and closes the gap."""
    lines = f'queue_limit = {WINDOW}\noverflow = "discard"'
    with Clusters(tmp_path, ONE_WAY, queues={"east": lines}) as clusters:
        eventually("the queue has an owner", lambda: clusters.queue_rows("east", "west")[0]["owner"])
        clusters.suspend_sink("west")
        keys = put_many(clusters, 5 * WINDOW, "k")
        clusters.resume_sink("west")
        eventually("the queue is empty", lambda: clusters.drained("east", "west"))
        (ledger,) = clusters.ledgers("east", "west")
        missing = set(keys) - clusters.contents("west").keys()
        assert missing
        assert ledger["closes"]
        assert ledger["given_up"] == len(missing)

        def on_record() -> list[dict[str, object]]:  # a second after the last discarded change
            gaps = ended_gaps(clusters)
            return gaps if sum(gap["count_at_least"] for gap in gaps) >= len(missing) else []

        gaps = eventually("the gaps have ended and say all", on_record)
        assert sum(gap["count_at_least"] for gap in gaps) == len(missing)
        # Only these writes went into these logs after the queue's start: a range has its changes, and the entries of
        # other kinds between them.
        assert len(missing) <= covered(gaps) <= len(missing) + 4 * len(gaps)
        healed(clusters)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_publishing_suspended_is_a_gap_that_full_sync_heals(tmp_path: Path) -> None:
    """Changes written while publishing is suspended are not sent and are recorded as a gap; later ones are sent;
    full-sync brings the missing ones and closes the gap."""
    with Clusters(tmp_path, ONE_WAY) as clusters:
        put_many(clusters, 50, "before")
        eventually("the queue is empty", lambda: clusters.drained("east", "west"))
        path = f"/admin/queues/{queue_to('west')}"
        clusters.act("east", f"{path}/suspend", {"what": "publishing", "reason": "a test"})
        eventually(
            "publishing is suspended", lambda: clusters.queue_rows("east", "west")[0]["publishing"] == "suspended"
        )
        left_out = put_many(clusters, 80, "during")
        clusters.act("east", f"{path}/resume", {"what": "publishing"})
        eventually("publishing runs", lambda: clusters.queue_rows("east", "west")[0]["publishing"] == "running")
        put_many(clusters, 50, "after")
        eventually("the queue is empty", lambda: clusters.drained("east", "west"))
        assert clusters.contents("east").keys() - clusters.contents("west").keys() == set(left_out)
        gaps = eventually("the gaps have ended", lambda: ended_gaps(clusters))
        assert {gap["by"] for gap in gaps} == {"test"}
        assert len(left_out) <= covered(gaps) <= len(left_out) + 4 * len(gaps)
        healed(clusters)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_real_time_resumes_by_cursor_and_bulk_references_are_healed(tmp_path: Path) -> None:
    """A source node that is stopped with real-time and pushed references waiting: the first are there again after the
    restart, the second are a gap on record, after kill -9 too, and full-sync closes both."""
    with Clusters(tmp_path, ONE_WAY) as clusters:
        pushed = put_many(clusters, 40, "old")
        eventually("the queue is empty", lambda: clusters.drained("east", "west"))
        clusters.suspend_sink("west")
        node, fault_cluster = clusters.node("east"), clusters.by_name["east"]
        wish = {"bucket_type": "default", "bucket": BUCKET, "keys": pushed}
        for way in ("stopped", "killed"):
            put_many(clusters, 60, way)
            clusters.act("east", f"/admin/queues/{queue_to('west')}/push", wish)
            (row,) = clusters.queue_rows("east", "west")
            assert row["priorities"]["full_sync"]["waiting"] == len(pushed)
            if way == "stopped":
                assert node.terminate() == 0
            else:
                node.kill()
            fault_cluster.start(node)
            fault_cluster.wait_until_healthy(90)
            (row,) = clusters.queue_rows("east", "west")
            assert row["priorities"]["full_sync"]["waiting"] == 0
            taken = {gap["what"]: gap for gap in clusters.gaps("east", "west")}
            assert taken.keys() == ({"stopped"} if way == "stopped" else {"stopped", "crashed"})
            assert taken["stopped"]["count_at_least"] == len(pushed)
            if way == "killed":
                assert taken["crashed"]["count_at_most"] >= len(pushed)
                assert taken["crashed"]["node"] == node.name
        clusters.resume_sink("west")
        eventually("the queue is empty", lambda: clusters.drained("east", "west"))
        assert clusters.contents("west").keys() == clusters.contents("east").keys()
        healed(clusters)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_hot_key_is_neither_starved_nor_sent_for_each_rewrite(tmp_path: Path) -> None:
    """A key that is rewritten far faster than the link drains arrives repeatedly during that time, is sent far less
    often than it is written, and does not delay other keys."""
    with Clusters(tmp_path, ONE_WAY, queues={"east": "object_rate_limit = 20"}) as clusters:
        eventually("the queue has an owner", lambda: clusters.queue_rows("east", "west")[0]["owner"])
        stopping, rewrites = threading.Event(), [0]

        def rewrite() -> None:
            while not stopping.is_set():
                put(clusters.node("east").place, "hot", b"%d" % rewrites[0])
                rewrites[0] += 1

        thread = threading.Thread(target=rewrite)
        thread.start()
        seen: set[str] = set()
        west = Connection(clusters.node("west").place)
        try:
            put_many(clusters, 60, "cold")
            deadline = time.monotonic() + 15
            while time.monotonic() < deadline:
                reply = west.request("GET", key_path("hot"), {})
                seen.update(values_of(reply))
                time.sleep(0.05)
        finally:
            stopping.set()
            thread.join()
            west.close()
        clusters.check()
        acknowledged = clusters.total("east", "west", "acknowledged") - 60
        assert len(seen) >= 4, f"starved: only {len(seen)} states of it were seen in 15 s"
        assert rewrites[0] > 200, "not hot"
        assert acknowledged < rewrites[0] * 0.8, f"{acknowledged} sent of {rewrites[0]} rewrites"


def ended_gaps(clusters: Clusters) -> list[dict[str, object]]:
    """The gaps from east to west, once none of them grows any more."""
    gaps = clusters.gaps("east", "west")
    return gaps if all(gap["upto_offset"] is not None for gap in gaps) else []


def healed(clusters: Clusters) -> None:
    """Full-sync finds and repairs the missing changes and closes the gaps; then all checks pass."""
    assert clusters.full_sync("east", "west")["verdict"] in ("in-sync", "repaired")
    eventually("the repairs have arrived", lambda: clusters.drained("east", "west"))

    def closed() -> bool:
        # A proof counts when it began some seconds after the gap had ended, and gaps are looked at once a minute.
        assert clusters.full_sync("east", "west")["verdict"] == "in-sync"
        time.sleep(3)
        return not clusters.gaps("east", "west")

    eventually("the gaps are closed", closed)
    clusters.check()
