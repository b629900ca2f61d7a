"""All data of ZooKeeper is lost under a running cluster: nodes keep serving, and the metastore is adopted."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest

from isthmus.repl.runtime.metastore_copy import load_copy
from tests.system.local.real_nodes import Client, Writer, eventually, real_clusters

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TABLES = '[replication]\nfactor = 3\nmin_isr = 2\npartitions = 4\n[[queues]]\nname = "to-west"\n'


def test_a_cluster_whose_zookeeper_was_wiped_is_adopted_with_all_that_it_acknowledged(tmp_path: Path) -> None:
    """Writes before the loss and after it, of the default and of another bucket type, an option and a suspension are
    there after `cluster adopt`, a restart of all nodes and `cluster reseed`. Before, nodes name the cause, do not
    start, and never advise to empty a directory."""
    with real_clusters(tmp_path, {"east": 3}) as (server, clusters):
        nodes, client = clusters["east"], Client()
        first = nodes[0]
        for node in nodes:
            node.write(server.hosts, TABLES)
            node.start()
        for node in nodes:
            eventually(lambda node=node: client.online(node), f"{node.name} online")  # type: ignore[misc]
        for command in (
            ("bucket-type", "create", "orders", "--partitions", "2", "--replication-factor", "3"),
            ("option", "set", "replication.min.isr", "1", "--bucket-type", "orders"),
            ("queue", "suspend", "to-west", "--reason", "a test"),
        ):
            code, text = client.command(first, *command)
            assert code == 0, text

        def put(number: int) -> bool:
            bucket_type = ("default", "orders")[number % 2]
            url = f"{client.url(nodes[number % 3])}/types/{bucket_type}/buckets/b/keys/k{number}"
            return client.request("PUT", url, b"v%d" % number)[0] == 204

        def lacking(numbers: list[int]) -> list[int]:
            url = client.url(nodes[1])
            return [
                n
                for n in numbers
                if client.request("GET", f"{url}/types/{('default', 'orders')[n % 2]}/buckets/b/keys/k{n}")
                != (200, b"v%d" % n)
            ]

        with Writer(put) as writer:
            eventually(lambda: len(writer.acknowledged) > 50, "writes")

            def is_copied() -> bool:
                copy = load_copy(first.directory / "data")
                return (
                    copy is not None
                    and {f"/p/{n}" for n in range(6)} <= copy.documents.keys()
                    and bool({"/options", "/queues/to-west/suspension"} <= copy.documents.keys())
                )

            eventually(is_copied, "a copy of the metastore")
            server.kill()
            shutil.rmtree(server.directory)
            server.start()

            def names_the_reason() -> bool:
                found = client.document(first, "/admin/cluster")
                return any("metastore-rollback: ZooKeeper at" in problem for problem in found["problems"])

            eventually(names_the_reason, "the cause in cluster status")
            before = len(writer.acknowledged)
            eventually(lambda: len(writer.acknowledged) > before + 50, "writes after the loss")

        first.send(signal.SIGTERM)
        assert first.process is not None
        first.process.wait(60)
        first.start()
        assert first.process.wait(60) == 5
        advice = first.log.read_text().splitlines()[-1]
        assert "isthmus cluster adopt" in advice
        assert "do not empty the directory" in advice

        code, text = client.command(first, "cluster", "adopt", str(first.file), "--dry-run", "-o", "json")
        assert code == 0, text
        plan = json.loads(text)
        assert (plan["outcome"], plan["bucket_types"]) == ("would be adopted", {"default": 4, "orders": 2})
        code, text = client.command(first, "cluster", "adopt", str(first.file))
        assert (code, "nothing was done" in text) == (2, True), "it asks"
        code, text = client.command(first, "cluster", "adopt", str(first.file), "--yes", "--by", "ann")
        assert code == 0, text
        first.start()
        for node in nodes[1:]:
            node.stop()
            node.start()
        for node in nodes:
            eventually(lambda node=node: len(client.document(node, "/admin/cluster")["nodes"]) == 3, "all nodes")  # type: ignore[misc]
        code, text = client.command(first, "cluster", "adopt", str(first.file), "--yes")
        assert code != 0
        assert "nothing is to be adopted" in text

        def reseeded() -> bool:
            return client.command(first, "cluster", "reseed", "--yes", "--by", "ann")[0] == 0

        eventually(reseeded, "a reseed of all partitions")
        for node in nodes:
            eventually(lambda node=node: client.online(node), f"{node.name} online again")  # type: ignore[misc]
        assert lacking(writer.acknowledged) == []
        queue = json.loads(client.command(first, "queue", "show", "to-west", "-o", "json")[1])
        assert "a test" in json.dumps(queue)
        option = ("option", "get", "replication.min.isr", "--bucket-type", "orders", "-o", "json")
        code, text = client.command(first, *option)
        assert code == 0, text
        assert json.loads(text)["options"][0]["set"] == 1
        assert put(10_000)
