"""Batch jobs read tokens from files like all other programs, and reveal them to no one but the nodes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from isthmus.aae.reconcile.client import Credentials, parse_plan
from isthmus.aae.scrub import row_repair
from isthmus.repl.http.client import HttpPeer
from isthmus.repl.model.errors import BadInput, CodecError
from tests.support.reconcile_pairs import served

TOKEN = "abcdefgh.0123456789"
SECRET = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIDfSecretSecret\n-----END PRIVATE KEY-----\n"


def written(path: Path, text: str, mode: int = 0o600) -> str:
    """A file that only its owner may read."""
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return str(path)


def test_a_file_of_tokens_is_read_as_by_all_others(tmp_path: Path) -> None:
    """The first token of the file is sent: the file may have comments, digests, and the next token of a rotation."""
    lines = f"# readers\n\nsha256:{'ab' * 32}\n{TOKEN}\nthe-next-token-of-all\n"
    access = Credentials(token_file=written(tmp_path / "token", lines)).access()
    assert access.token is not None
    assert access.token() == TOKEN
    with served(lambda _path, _body: b"fine") as url:
        assert HttpPeer(url, 1, access).get("/", timeout_ms=5_000, limit_bytes=10) == b"fine"


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        (SECRET, 0o600, "holds a key"),
        ("two words\n", 0o600, "holds no plain-text token"),
        ("", 0o600, "is empty"),
        (f"{TOKEN}\n", 0o644, "every user of this machine may read"),
    ],
)
def test_a_file_that_is_none_of_tokens_is_refused_and_not_repeated(
    tmp_path: Path, text: str, mode: int, words: str
) -> None:
    """The message says that the option is wrong and repeats no line of the file, since it ends up in logs."""
    path = written(tmp_path / "token", text, mode)
    with pytest.raises(BadInput, match=f"option token_file: .*{words}") as caught:
        Credentials(token_file=path).access()
    for line in text.splitlines():
        assert line not in str(caught.value)
    with pytest.raises(BadInput, match=r"option token_file: .*no such file"):
        Credentials(token_file=str(tmp_path / "none")).access()


@pytest.mark.parametrize(
    "read",
    [
        lambda plan: parse_plan(plan, "http://n:1"),
        lambda plan: row_repair._whole_replicas(plan, 5, "http://n:1"),  # of another cluster, to repair a row
    ],
)
def test_a_plan_with_an_infinite_partition_is_refused(read: Callable[[bytes], object]) -> None:
    """Python's JSON parser accepts infinity, which is not a partition number."""
    copies = [{"node": "n", "http": "http://n:1", "leads": True, "whole": True, "epoch": 1, "offset": 5}]
    row = {"partition": 3, "segments": [0, 1 << 20], "rows_estimate": None, "copies": copies}
    plan = {"cluster_uuid": "00" * 16, "cluster": "east", "bucket_type": "default", "partitions": [row]}
    assert read(json.dumps(plan).encode())
    row["partition"] = float("inf")
    with pytest.raises(CodecError, match="not a plan of rows"):
        read(json.dumps(plan).encode())
