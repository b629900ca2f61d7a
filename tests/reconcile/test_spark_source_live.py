"""`format("isthmus")` on real engines against real nodes: what is read, written and streamed is what the cluster has.

Each test is a Spark program in a process of its own, as a user would start it; it prints one line of JSON. Slow: a JVM
takes seconds to come up, and much longer beside others.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgpack
import pytest

from node.local import LocalClusters
from node.topology import parse_topology
from repl.transport.http_client import HttpPeer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_200)]

HOUSE: Final = Path(__file__).resolve().parents[2]
COUNT: Final = 5_000

TOPOLOGY: Final = """\
[clusters.a.replication]
factor = 2
partitions = 4
[[clusters.a.nodes]]
name = "a1"
[[clusters.a.nodes]]
name = "a2"
"""

OPENING: Final = """\
import json, os, sys
from pyspark.sql import SparkSession, functions as F
from aae.reconcile import register
master, urls, scratch = sys.argv[1:4]
spark = (
    SparkSession.builder.master(master)
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.executor.memory", "512m")
    .config("spark.python.authenticate.socketTimeout", "120s")
    .getOrCreate()
)
register(spark)
def read(**options):
    return spark.read.format("isthmus").options(urls=urls, **options).load()
"""


class Live:
    """A cluster of two nodes with COUNT keys of bucket `w`, and the way to run programs against it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._clusters = LocalClusters(
            parse_topology(TOPOLOGY, Path("live.toml")), directory / "nodes", auto_ports=True, owned=True
        )
        self._clusters.up(180.0)
        self.nodes: list[dict[str, Any]] = self._clusters.status()["clusters"]["a"]["nodes"]
        items = [[b"default", b"w", b"k%05d" % n, b"v%d" % n] for n in range(COUNT)]
        peer = HttpPeer(self.nodes[0]["http"], 1)
        for at in range(0, COUNT, 1_000):
            body = msgpack.packb(items[at : at + 1_000])
            answer = peer.post(
                "/batch/put", body, media_type="application/msgpack", timeout_ms=60_000, limit_bytes=10**7
            )
            assert all(status == 204 for status, *_ in msgpack.unpackb(answer))
        peer.cut()

    def run(self, program: str, master: str = "local[2]", *extra: str) -> Any:
        """What a program prints last, as JSON."""
        script = self._directory / "program.py"
        script.write_text(OPENING + program, encoding="utf-8")
        urls = ",".join(node["http"] for node in self.nodes)
        done = subprocess.run(
            [sys.executable, str(script), master, urls, str(self._directory / "scratch"), *extra],
            cwd=self._directory,
            env={**os.environ, "PYTHONPATH": str(HOUSE), "PYSPARK_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4_000:]
        return json.loads(done.stdout.strip().splitlines()[-1])

    def down(self) -> None:
        """End it."""
        self._clusters.down()


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    """The cluster."""
    made = Live(tmp_path)
    yield made
    made.down()


READ: Final = """
keys = read(manifest=scratch + "/manifest")
from pathlib import Path
from aae.reconcile.reading import read_manifest
out = {
    "keys": keys.count(),
    "distinct": keys.select("bucket", "key").distinct().count(),
    "hashes": keys.filter("clock_hash = xxhash64(clock)").count(),
    "segments": keys.filter("segment >= 1000 and segment < 500000").count(),
    "bucket": keys.filter("bucket = X'77'").count(),
    "nothing": keys.filter("bucket = X'78'").count(),
    "prefix": read(bucket="w", prefix="k0001").count(),
    "committed": read(consistency="committed", splits="9").count(),
}
pieces, missing = read_manifest(Path(scratch + "/manifest"))
out["pieces"] = sum(piece.rows for piece in pieces)
out["missing"] = missing
objects = read(view="objects", columns="bucket,key,object,clock,value")
number = "cast(cast(substring(cast(key as string), 2) as int) as string)"
out["values"] = objects.filter(f"cast(value as string) = concat('v', {number})").count()
objects.select("bucket", "key", "object", "clock").write.parquet(scratch + "/x")
saved = spark.read.parquet(scratch + "/x")
saved.write.format("isthmus").mode("append").options(urls=urls, origin="00" * 16).save()
out["kept"] = read(columns="key,clock").join(saved, ["key", "clock"]).count()
text = F.col("id").cast("string")
fresh = spark.range(100).select(F.lit("n").alias("bucket"), text.alias("key"), text.cast("binary").alias("value"))
def stream():
    query = (spark.readStream.format("isthmus").options(urls=urls, columns="bucket,key", rows_per_batch="2000").load()
        .writeStream.format("parquet").option("path", scratch + "/s").option("checkpointLocation", scratch + "/c")
        .trigger(availableNow=True).start())
    query.awaitTermination()
    return spark.read.parquet(scratch + "/s").count()
out["streamed"] = stream()
fresh.write.format("isthmus").mode("append").options(urls=urls).save()
out["then"] = stream()
print(json.dumps(out))
"""


def test_everything_on_a_local_engine(live: Live) -> None:
    """Keys, filters, manifest, objects, writes that keep clocks, new writes and two runs of a stream: all counts are
    those of the cluster."""
    found = live.run(READ)
    inside = found.pop("segments")
    assert 0 < inside < COUNT
    whole = dict.fromkeys(
        ("keys", "distinct", "hashes", "bucket", "committed", "pieces", "values", "kept", "streamed"), COUNT
    )
    assert found == {**whole, "nothing": 0, "prefix": 10, "missing": [], "then": COUNT + 100}


def free_port() -> int:
    """A port of loopback that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def test_a_standalone_master_with_two_workers_and_a_node_that_dies(live: Live, tmp_path: Path) -> None:
    """On separate worker processes the read is whole, also when one node was killed: every partition has another
    copy."""
    import pyspark

    port = free_port()
    home = str(Path(pyspark.__file__).parent)
    env = {
        **os.environ, "SPARK_HOME": home, "PYTHONPATH": str(HOUSE), "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_WORKER_DIR": str(tmp_path / "work"),
    }  # fmt: skip
    launch = [home + "/bin/spark-class", "org.apache.spark.deploy"]
    commands = [
        [launch[0], launch[1] + ".master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"],
        *(
            [launch[0], launch[1] + ".worker.Worker", "--cores", "1", "--memory", "512m", "--webui-port", "0",
             f"spark://127.0.0.1:{port}"]
            for _ in range(2)
        ),
    ]  # fmt: skip
    with (tmp_path / "engine.log").open("wb") as log:
        engine = [
            subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True) for command in commands
        ]
        try:
            deadline_s = time.monotonic() + 120
            while (tmp_path / "engine.log").read_text(errors="replace").count(
                "Successfully registered with master"
            ) < 2:
                assert time.monotonic() < deadline_s, (tmp_path / "engine.log").read_text(errors="replace")[-4_000:]
                time.sleep(0.5)
            program = "print(json.dumps(read().count()))\n"
            master = f"spark://127.0.0.1:{port}"
            assert live.run(program, master) == COUNT
            os.kill(live.nodes[0]["pid"], signal.SIGKILL)
            assert live.run(program, master) == COUNT
        finally:
            for process in engine:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(30)
