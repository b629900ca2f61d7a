"""Batch jobs against clusters with TLS and tokens on every listener: reading, comparing, writing, repairing, each with
the least role that does."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from isthmus.aae.reconcile.job import ReconcileOptions, run
from isthmus.aae.reconcile.spark_session import session
from isthmus.aae.run_directory import RunDirectory
from tests.support.reconcile_pairs import findings_by_key, up

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TOPOLOGY = """
secure = true
[clusters.east.replication]
partitions = 2
[[clusters.east.nodes]]
name = "east-1"
[[clusters.east.queues]]
name = "to-west"
filter = "block_rtq"
[clusters.west.replication]
partitions = 3
[[clusters.west.nodes]]
name = "west-1"
[[clusters.west.sink.peers]]
cluster = "east"
queue = "to-west"
"""


class SecuredClusters:
    """Both clusters, and the credentials for them."""

    def __init__(self, directory: Path, described: dict[str, Any]) -> None:
        nodes = {name: one["nodes"][0] for name, one in described["clusters"].items()}
        self.east, self.west, self.admin = nodes["east"]["http"], nodes["west"]["http"], nodes["east"]["admin"]
        self.security = directory / "security"
        self.ca = str(self.security / "ca.crt")

    def token(self, role: str) -> str:
        """The path of a role's token."""
        return str(self.security / f"{role}.token")

    def options(self, url: str, role: str, **more: str) -> dict[str, str]:
        """The options of a read or write."""
        return {"urls": url, "token_file": self.token(role), "ca_file": self.ca, "give_up_after_s": "20", **more}

    def command(self, *arguments: str, role: str) -> subprocess.CompletedProcess[str]:
        """`isthmus` with a role's token."""
        env = {
            "ISTHMUS_ADMIN": self.admin, "ISTHMUS_CA": self.ca, "ISTHMUS_TOKEN_FILE": self.token(role),
            "PATH": "/usr/bin:/bin",
        }  # fmt: skip
        line = [sys.executable, "-m", "isthmus.node.cli.main", *arguments]
        return subprocess.run(line, env=env, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredClusters]:
    """The clusters."""
    directory = tmp_path_factory.mktemp("locked")
    with up(directory, TOPOLOGY) as described:
        yield SecuredClusters(directory / "d", described)


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """One session for all tests."""
    made = session("tests", "local[2]")
    yield made
    made.stop()


def test_reading_writing_comparing_and_repairing_behind_locks(
    spark: Any, locked: SecuredClusters, tmp_path: Path
) -> None:
    """A table is written as new objects (`write`), read (`read` or `replicate`) and pushed with clocks (`replicate`); a
    run compares by trees (`read` or `replicate`), a repair is queued (`operate`); a caller without the role, token or
    authority gets an error that says which one it lacks; a run's files contain no token."""
    rows = spark.range(300).selectExpr(
        "'b' bucket", "cast(id as string) key", "cast(cast(id as string) as binary) value"
    )
    writer = rows.write.format("isthmus").mode("append")
    with pytest.raises(PySparkException, match="role write"):
        writer.options(**locked.options(locked.east, "read")).save()
    writer.options(**locked.options(locked.east, "write")).save()

    def read(role: str, **more: str) -> Any:
        return spark.read.format("isthmus").options(**locked.options(locked.east, role, **more)).load()

    assert read("read").count() == 300
    assert read("replicate").count() == 300  # a role that may fetch from a queue may see as much
    with pytest.raises(PySparkException, match="no token was shown"):
        spark.read.format("isthmus").options(urls=locked.east, ca_file=locked.ca).load().count()
    with pytest.raises(PySparkException, match="authority"):
        spark.read.format("isthmus").options(urls=locked.east, token_file=locked.token("read")).load().count()
    shown = {"certificate_file": str(locked.security / "client.crt"), "key_file": str(locked.security / "client.key")}
    assert read("read", **shown).count() == 300

    some = read("read", view="objects", columns="bucket_type,bucket,key,object").where("key != X'37'")
    pushing = some.write.format("isthmus").mode("append")
    with pytest.raises(PySparkException, match="role replicate"):
        pushing.options(**locked.options(locked.west, "read")).save()
    pushing.options(**locked.options(locked.west, "replicate")).save()

    def compared(run_id: str, role: str) -> dict[str, Any]:
        wanted = ReconcileOptions(
            str(tmp_path), run_id, settle_s=0.5, give_up_after_s=20, token_file=locked.token(role), ca_file=locked.ca
        )
        return run(spark, locked.east, locked.west, wanted)

    ended = compared("locked", "read")
    assert (ended["exit_code"], ended["mode"]) == (1, "trees")
    assert findings_by_key(tmp_path, "locked") == {b"7": ("diverged", "missing", "sink")}
    assert compared("fetching", "replicate")["verdicts"] == ended["verdicts"]

    repair = ("reconcile", "repair", "locked")
    planned = locked.command(*repair, "plan", "--dir", str(tmp_path), "--queue", "to-west", role="read")
    assert planned.returncode == 0, planned.stderr
    told = locked.command(*repair, "apply", "--dir", str(tmp_path), role="read")
    assert (told.returncode, "role operate" in told.stderr) == (4, True), told
    told = locked.command(*repair, "apply", "--dir", str(tmp_path), role="operate")
    assert told.returncode == 0, told.stderr
    west = spark.read.format("isthmus").options(**locked.options(locked.west, "read")).load()
    deadline = time.monotonic() + 60
    while west.count() < 300:
        assert time.monotonic() < deadline, "never: the key arrives"
    assert compared("after", "read")["exit_code"] == 0
    secrets = [path.read_bytes().strip() for path in locked.security.glob("*.token")]
    for path in RunDirectory(str(tmp_path), "locked").path.rglob("*"):
        assert path.is_dir() or not any(secret in path.read_bytes() for secret in secrets), path
