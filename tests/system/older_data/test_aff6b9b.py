"""A data directory and a metastore of an older version, opened by this one.

`aff6b9b.tar.xz` holds `east-1/data` and `zookeeper-east/data` of a cluster of one node that `isthmus local up` of
commit aff6b9b started from `TOPOLOGY`, and that ended by `kill -9`:

- bucket type `default`: `users/u0` to `u99` written as `value N`, `u0` to `u9` deleted afterwards, `users/twin` with
  the siblings `one` and `two`, and `users/aN` as in `AUDITED` and `LEFT_OUT`;
- bucket type `orders` with 4 partitions, `allow_mult=false`: `b/1` (with the slash) `o0` to `o19`, JSON;
  `orders/b1` with `allow_mult=true`, by ann;
- options `replication.max.record.lag` 5000 and `election.ask.millis` 400, by ann;
- queue `to-west` of the topology, serving suspended, 141 changes; queue `audit`, registered by ann with `cascade`,
  `bucketname:users` and 500 objects a second, publishing suspended after ten changes: 16 gaps;
- all fetches of the sink suspended, by ann.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from isthmus.node.local import supervisor_client

TOPOLOGY = '[clusters.east]\n[[clusters.east.nodes]]\nname = "east-1"\n[[clusters.east.queues]]\nname = "to-west"\n'
ARCHIVE = Path(__file__).with_name("aff6b9b.tar.xz")
USERS = "types/default/buckets/users/keys"

#: Keys `aN` of `users`: offered by queue `audit`, or written while its publishing was suspended.
AUDITED = {f"a{number}": f"newer {number}" for number in range(20, 30)}
LEFT_OUT = {
    **{f"a{number}": f"left out {number}" for number in range(30, 35)},
    **{f"a{number}": f"last {number}" for number in range(35, 40)},
}


def isthmus(*words: str, admin: str = "") -> Any:
    """Run a command with `-o json`; return its document."""
    line = [sys.executable, "-m", "isthmus.node.cli.main", *words, *(["--admin", admin] if admin else []), "-o", "json"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def get(url: str, accept: str = "*/*") -> tuple[int, str]:
    """The status and the body of a GET."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers={"Accept": accept}), timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def put(url: str, value: str) -> None:
    """Write a value; raises HTTPError unless it is acknowledged."""
    headers = {"Content-Type": "text/plain"}
    request = urllib.request.Request(url, value.encode(), headers=headers, method="PUT")
    with urllib.request.urlopen(request, timeout=10) as response:
        assert response.status == 204


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """The archive's contents; the cluster that a test starts there is stopped."""
    place = tmp_path / "older"
    filtered: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # not in 3.11.0 to 3.11.3
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(place, **filtered)
    (tmp_path / "older.toml").write_text(TOPOLOGY)
    yield place
    supervisor_client.stop(place)


@pytest.mark.timeout(200)
def test_a_node_of_this_version_serves_what_aff6b9b_wrote(tmp_path: Path, directory: Path) -> None:
    """Values, deletes, siblings, bucket types, properties, options, queues with cursors and gaps, and suspensions of
    commit aff6b9b are there after this version has opened its directory, and new writes are accepted and offered."""
    up = isthmus("local", "up", str(tmp_path / "older.toml"), "--dir", str(directory), "--auto-ports")
    (node,) = up["clusters"]["east"]["nodes"]
    http, admin = node["http"], node["admin"]

    written = {f"u{number}": f"value {number}" for number in range(10, 100)} | AUDITED | LEFT_OUT
    assert {key: get(f"{http}/{USERS}/{key}") for key in written} == {key: (200, text) for key, text in written.items()}
    assert [get(f"{http}/{USERS}/u{number}")[0] for number in range(10)] == [404] * 10
    status, siblings = get(f"{http}/{USERS}/twin", "multipart/mixed")
    assert status == 300
    assert "\r\n\r\none\r\n" in siblings
    assert "\r\n\r\ntwo\r\n" in siblings
    orders = f"{http}/types/orders/buckets/b%2F1/keys"
    assert [json.loads(get(f"{orders}/o{number}")[1]) for number in range(20)] == [{"order": n} for n in range(20)]

    types = {each["bucket_type"]: each for each in isthmus("bucket-type", "list", admin=admin)["bucket_types"]}
    assert {name: (each["partition_count"], each["online"]) for name, each in types.items()} == {
        "default": (12, 12),
        "orders": (4, 4),
    }
    options = {each["option"]: each for each in isthmus("option", "list", admin=admin)["options"] if each["by"]}
    assert {name: (each["set"], each["effective"], each["by"]) for name, each in options.items()} == {
        "replication.max.record.lag": (5000, 5000, "ann"),
        "election.ask.millis": (400, 400, "ann"),
    }
    for bucket, allow_mult, origin in (("orders/b1", True, "bucket"), ("orders/b2", False, "bucket type")):
        shown = {each["property"]: each for each in isthmus("bucket", "show", bucket, admin=admin)["properties"]}
        assert (shown["allow_mult"]["value"], shown["allow_mult"]["origin"]) == (allow_mult, origin)

    queues = {each["name"]: each for each in isthmus("queue", "list", admin=admin)["queues"]}
    west, audit = queues["to-west"], queues["audit"]
    assert (west["serving"], west["suspended"]["reason"]) == ("suspended", "west is away")
    assert west["priorities"]["real_time"]["waiting"] == 141
    assert (audit["filter"], audit["cascade"], audit["publishing"]) == ("bucketname:users", True, "suspended")
    assert audit["priorities"]["real_time"]["waiting"] == len(AUDITED)
    assert (audit["decree"]["by"], audit["decree"]["reason"]) == ("ann", "an audit")
    gaps = isthmus("gaps", admin=admin)["gaps"]
    assert {each["partition"] for each in gaps} == set(range(16))
    assert {(each["queue"], each["what"], each["upto_offset"]) for each in gaps} == {
        ("audit", "publishing-suspended", None)
    }
    (suspension,) = isthmus("sink", "show", admin=admin)["nodes"][0]["sink"]["suspensions"]
    assert (suspension["by"], suspension["reason"]) == ("ann", "holiday")

    put(f"{http}/{USERS}/new", "a new value")
    assert get(f"{http}/{USERS}/new") == (200, "a new value")
    isthmus("queue", "resume", "audit", "--publishing", admin=admin)
    put(f"{http}/{USERS}/newer", "another")
    waiting: dict[str, int] = {}
    for _ in range(20):  # a queue takes up a change just after it is acknowledged
        listed = isthmus("queue", "list", admin=admin)["queues"]
        waiting = {each["name"]: each["priorities"]["real_time"]["waiting"] for each in listed}
        if waiting == {"to-west": 143, "audit": len(AUDITED) + 1}:
            return
    pytest.fail(f"two writes after the resumption are not offered as they must be: {waiting}")
