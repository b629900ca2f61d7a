"""`isthmus reconcile show --values` shows what both clusters have of keys that differ; `repair` looks at the queue."""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isthmus.aae.reconcile import key_values
from isthmus.aae.reconcile.client import Pusher
from isthmus.aae.run_directory import RunDirectory
from isthmus.node.cli.admin_client import AdminClient
from isthmus.node.cli.exit_codes import Exit
from isthmus.node.cli.main import main
from isthmus.repl.model.errors import PeerFault
from isthmus.repl.model.vclock import actor_of, encode_clock, pack_counter

A = actor_of(b"A" * 16, 1)
OLD, NEW = (encode_clock(((A, pack_counter(2, offset), 1_700_000_000),)) for offset in (4, 5))


def sibling(value: bytes | None, modified_ms: int = 1_700_000_000_000) -> list[Any]:
    """As in an answer of /batch/get."""
    return [value, b"text/plain", "vtag", modified_ms, None]


LEFT: dict[bytes, Any] = {
    b"behind": [200, NEW, [sibling(b"new \x1b[31m\xff")]],
    b"gone": [404, OLD, [sibling(None)]],
    b"long": [200, OLD, [sibling("ü".encode() * 5_000)]],
    b"lost": [200, OLD, [sibling(b"x")]],
}
RIGHT: dict[bytes, Any] = {
    b"behind": [300, OLD, [sibling(b"one"), sibling(b"two", 1_700_000_001_000)]],
    b"gone": [404, None, "not-found"],
    b"long": [503, None, "overloaded: later"],
}


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A directory with a run that found these keys, and clusters that answer."""
    directory = RunDirectory(str(tmp_path), "may")
    directory.write("run.json", {"form": 1})
    directory.write("urls.json", {"left": "http://left:1,http://left:2", "right": "http://right:1"})
    summary = {"verdicts": {"diverged": 4}, "seconds": 1.0, "findings_cut": False, "clusters": ["aa", "bb"]}
    directory.write("summary.json", summary)
    rows = [
        {
            "bucket_type": "default", "bucket": b"b", "key": key, "difference": "missing", "side": "sink",
            "left_size": 5, "right_size": 0, "left_siblings": 1, "right_siblings": 0, "left_fault": None,
            "right_fault": None, "verdict": "diverged",
        }
        for key in LEFT
    ]  # fmt: skip
    pq.write_to_dataset(pa.Table.from_pylist(rows), directory.path / "findings", partition_cols=["verdict"])

    def post(self: Pusher, path: str, body: bytes, _limit_bytes: int) -> Any:
        assert path == "/batch/get"
        [[bucket_type, bucket, key, isolation]] = msgpack.unpackb(body)
        assert (bucket_type, bucket, isolation) == ("default", b"b", "committed")
        answers = LEFT if self._peers[0].url.startswith("http://left") else RIGHT
        if key not in answers:
            raise PeerFault("no node takes the batch: the answer is larger than 134217728 bytes")
        return [answers[key]]

    monkeypatch.setattr(Pusher, "post", post)
    for name in ("TOKEN", "TOKEN_FILE", "CA", "CERT", "KEY", "ADMIN"):
        monkeypatch.delenv(f"ISTHMUS_{name}", raising=False)
    return str(tmp_path)


def test_both_values_of_a_key_are_side_by_side(runs: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Clock, siblings, times and the beginning of the values of both clusters, with what differs marked; control
    characters and bytes that are no text are escaped, and a key that one side cannot give leaves the others alone."""
    assert main(["reconcile", "show", "may", "--dir", runs, "--values", "9"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    for line in (
        "default/b/behind: diverged, missing, sink (right)",
        "= state present present",
        "≠ clock 41414141..0001 2.5 41414141..0001 2.4",
        "≠ siblings 1 2",
        r"≠ value 1 new \x1b[31m\xff (10 bytes, text/plain) one (3 bytes, text/plain)",
        "= last modified 1 2023-11-14 22:13:20.000Z 2023-11-14 22:13:20.000Z",
        "≠ last modified 2 - 2023-11-14 22:13:21.000Z",
        "≠ state deleted absent",
        "≠ state present unknown: overloaded: later",
        "≠ state present unknown: no node takes the batch: the answer is larger than 134217728 bytes",
    ):
        assert line in lines, (line, lines)
    assert any(line.startswith("≠ value üüü") and "ü... (10000 bytes, text/plain, xxh64 " in line for line in lines)


def test_values_as_json_are_exact(runs: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Values are text where they are that, and base64; a long one is cut at a character, with its length."""
    assert main(["reconcile", "show", "may", "--dir", runs, "--values", "2", "--skip", "1", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["values"]
    assert [row["key"] for row in found] == ["gone", "long"]
    assert found[0]["left"]["siblings"][0]["deleted"]
    assert found[0]["right"] == {"state": "absent", "reason": "", "clock": [], "siblings": []}
    entry = {"actor": A.hex(), "epoch": 2, "offset": 4, "timestamp_s": 1_700_000_000}
    assert found[1]["left"]["clock"] == [entry]
    [long] = found[1]["left"]["siblings"]
    assert long["bytes"] == 10_000
    assert long["value"] == "ü" * (key_values.VALUE_BYTES // 2)
    assert b64decode(long["value_base64"]).decode() == long["value"]
    assert found[1]["right"]["reason"] == "overloaded: later"


def test_a_cut_value_ends_with_a_whole_character(monkeypatch: pytest.MonkeyPatch) -> None:
    """A character that would be cut is left out; bytes that are no text are cut where the limit is."""
    monkeypatch.setattr(key_values, "VALUE_BYTES", 4)
    assert key_values._beginning("aüü".encode()) == "aü".encode()
    assert key_values._beginning(b"\x80" * 9) == b"\x80"
    assert key_values._beginning(b"abcd") == b"abcd"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--values", "1001", "may"], "--values reads at most 1000 keys at once"),
        (["--values", "1"], "--values reads the findings of one run: give its RUN_ID"),
        (["--values", "1", "--keys", "1", "may"], "give one of the two"),
    ],
)
def test_values_that_cannot_be_shown_are_refused(
    runs: str, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    """The sentence says what would be right."""
    assert main(["reconcile", "show", "--dir", runs, *words]) == Exit.USAGE
    assert sentence in capsys.readouterr().err


def test_a_plan_for_a_queue_that_is_not_there_is_refused(
    runs: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`repair plan` looks at the queue of the sending cluster: a name that it does not have is refused, a queue that no
    cluster fetches is named, and where no node answers the plan is made and says that nobody has looked."""
    none = {"name": "to-right", "owner": None, "reason": "no sink cluster has fetched yet"}
    answers: dict[str, Any] = {
        "/admin/cluster": {"cluster": "left", "cluster_uuid": "aa"}, "/admin/queues": {"queues": [none]},
    }  # fmt: skip

    def get(_self: AdminClient, path: str) -> Any:
        if not answers:
            raise PeerFault("http://n1:1 does not answer")
        return answers[path]

    monkeypatch.setattr(AdminClient, "get", get)
    words = ["reconcile", "repair", "may", "plan", "--dir", runs, "--admin", "http://n1:1", "--queue"]
    assert main([*words, "typo"]) == Exit.USAGE
    assert "cluster left has no queue typo; it has to-right" in capsys.readouterr().err
    assert not list((Path(runs) / "run_id=may").glob("repairs/*"))
    capsys.readouterr()
    assert main([*words, "to-right"]) == 0
    assert "queue to-right: no sink cluster has fetched yet" in capsys.readouterr().err
    assert main(["reconcile", "repair", "may", "apply", "--dir", runs, "--admin", "http://n1:1"]) == Exit.USAGE
    assert "no cluster fetches from queue to-right: no sink cluster has fetched yet" in capsys.readouterr().err
    answers.clear()
    assert main([*words, "to-right"]) == 0
    assert "queue to-right was not looked at, `apply` does: http://n1:1 does not answer" in capsys.readouterr().err
