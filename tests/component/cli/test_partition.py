"""`isthmus partition plan` and `assign`: offline, and against an admin listener that answers from a script."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from isthmus.node.cli import main as cli
from isthmus.node.cli.exit_codes import Exit
from isthmus.repl.controller.placement import MAP_BYTES_MAX, computed, parse_replica_map, placed, replica_map_document

NOBODY = "http://127.0.0.1:1"


@pytest.fixture(autouse=True)
def _no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISTHMUS_ADMIN", NOBODY)


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Answers every POST with node["answer"] and node["status"]; node["posted"] is the received request."""
    state: dict[str, Any] = {"status": 200, "answer": {}, "posted": None}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            state["posted"] = (self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            body = json.dumps(state["answer"]).encode()
            self.send_response(state["status"])
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    monkeypatch.setenv("ISTHMUS_ADMIN", f"http://127.0.0.1:{server.server_address[1]}")
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


def plan(*arguments: str) -> list[str]:
    """The command line of a plan."""
    return ["partition", "plan", *arguments]


def map_file(tmp_path: Path, document: Any) -> str:
    """A file with this."""
    path = tmp_path / "map.json"
    path.write_bytes(document if isinstance(document, bytes) else json.dumps(document).encode())
    return str(path)


def test_a_plan_is_made_without_any_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    """Five nodes, three replicas, sixteen partitions: the published map, a row each."""
    assert cli.main(plan("--nodes", "5", "--partitions", "16", "--replication-factor", "3")) == Exit.OK
    lines = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["PARTITION", "LEADER", "REPLICAS"]
    sets = [tuple(map(int, line[2].split(", "))) for line in lines[1:]]
    assert tuple(sets) == computed(16, 3, range(5))
    assert [line[:2] for line in lines[1:]] == [[str(i), str(each[0])] for i, each in enumerate(sets)]


def test_a_plan_in_json_is_the_file_that_assign_takes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Exactly partitions with id and replicas; from start index 9, partition 0 is on 4, 1, 2."""
    arguments = ["--nodes", "5", "--partitions", "2", "--replication-factor", "3", "--start-index", "9", "-o", "json"]
    assert cli.main(plan(*arguments)) == Exit.OK
    out = capsys.readouterr().out
    assert json.loads(out) == {"partitions": [{"id": 0, "replicas": [4, 1, 2]}, {"id": 1, "replicas": [0, 3, 4]}]}
    assert cli.main(["partition", "assign", "--validate-only", "--file", map_file(tmp_path, out.encode())]) == Exit.OK


def test_racks_are_given_by_their_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    """r:n,...: rack r has the next n ids; the racks of each set are shown."""
    base = ["--nodes", "6", "--partitions", "6", "--replication-factor", "3", "--racks", "a:1,b:2,c:3"]
    racks = {0: "a", 1: "b", 2: "b", 3: "c", 4: "c", 5: "c"}
    assert cli.main(plan(*base, "-o", "json")) == Exit.OK
    assert parse_replica_map(capsys.readouterr().out) == placed(6, 3, racks)
    assert cli.main(plan(*base)) == Exit.OK
    assert capsys.readouterr().out.splitlines()[1].split()[-3:] == ["c,", "b,", "a"]
    assert cli.main(plan(*base, "--ignore-rack-assignment", "-o", "json")) == Exit.OK
    assert parse_replica_map(capsys.readouterr().out) == computed(6, 3, range(6))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--racks", "a:1"], "node ids 1, 2 have no rack"),
        (["--racks", "a:1"], "`bucket-type create --placement computed`, `partition plan --ignore-rack-assignment`"),
        (["--racks", "a:2,b:2"], "more nodes than --nodes, which is 3"),
        (["--racks", "a"], "'a' is not RACK:NUMBER-OF-NODES"),
        (["--racks", "a:0,b:3"], "'a:0' is not RACK:NUMBER-OF-NODES"),
        (["--racks", "a:" + "9" * 5000], "is not RACK:NUMBER-OF-NODES"),
        (["--racks", "a b:3"], "is not a name"),
        (["--racks", ",,"], "is not a name"),
        (["--replication-factor", "4"], "a replication factor of 4 needs as many nodes"),
        (["--replication-factor", "0"], "0 is not in the range"),
        (["--partitions", "1025"], "1025 is not in the range"),
        (["--nodes", "1001"], "1001 is not in the range"),
        (["--start-index", "-1"], "-1 is not in the range"),
    ],
)
def test_a_wrong_plan_is_wrong_usage(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    """The error is one line with a valid form; code 2."""
    assert cli.main(plan("--nodes", "3", "--partitions", "4", "--replication-factor", "2", *arguments)) == Exit.USAGE
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1


def test_racks_give_the_number_of_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    """--racks a:3,b:3 are six nodes without --nodes; with neither the refusal names both."""
    wanted = ["--partitions", "6", "--replication-factor", "3", "-o", "json"]
    assert cli.main(plan("--racks", "a:3,b:3", *wanted)) == Exit.OK
    alone = capsys.readouterr().out
    assert cli.main(plan("--racks", "a:3,b:3", "--nodes", "6", *wanted)) == Exit.OK
    assert capsys.readouterr().out == alone
    assert cli.main(plan(*wanted)) == Exit.USAGE
    assert "--nodes, or --racks a:3,b:3" in capsys.readouterr().err


def test_all_faults_of_a_file_are_reported_a_line_each(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Each line has the file, the place and a valid form; no request is sent; code 2, and one object with -o json."""
    path = map_file(tmp_path, {"partitions": [{"id": 1, "replicas": [0, 0]}, {"id": 1, "replicas": []}]})
    assert cli.main(["partition", "assign", "--file", path]) == Exit.USAGE
    assert [line.partition(" is ")[0] for line in capsys.readouterr().err.splitlines()] == [
        f"isthmus: {path}: partitions[0].id",
        f"isthmus: {path}: partitions[0].replicas[1]",
        f"isthmus: {path}: partitions[1].replicas",
    ]
    assert cli.main(["partition", "assign", "--file", path, "-o", "json"]) == Exit.USAGE
    assert json.loads(capsys.readouterr().err)["reason"] == "bad-replica-map"


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "not JSON"), (b"\xff\x00", "not JSON"), (b" " * (MAP_BYTES_MAX + 1), "at most"), (b"[]", "not an object")],
)
def test_a_file_of_another_kind_is_reported(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes, words: str
) -> None:
    """Empty, binary, too long, other JSON."""
    assert cli.main(["partition", "assign", "--file", map_file(tmp_path, content)]) == Exit.USAGE
    assert words in capsys.readouterr().err


def test_a_file_that_is_not_there_is_reported(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The error has the file's name and the system's message."""
    assert cli.main(["partition", "assign", "--file", str(tmp_path / "none")]) == Exit.USAGE
    assert "none: No such file" in capsys.readouterr().err


RIGHT = replica_map_document(((0, 1), (1, 0)))


def test_a_right_file_is_valid_as_far_as_it_can_be_checked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Without a node the file is reported as valid, with a note of what was not checked; without --validate-only: code
    3."""
    path = map_file(tmp_path, RIGHT)
    assert cli.main(["partition", "assign", "--file", path, "--validate-only"]) == Exit.OK
    out = capsys.readouterr().out
    assert out.startswith(
        f"{path} is valid for bucket type default, 2 partitions; not checked: whether these nodes live"
    )
    assert cli.main(["partition", "assign", "--file", path]) == Exit.UNAVAILABLE
    assert "does not answer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        ("created", "bucket type t, 2 partitions: created\n"),
        ("exists", "bucket type t, 2 partitions: exists with just this placement, nothing was changed\n"),
    ],
)
def test_an_assignment_shows_what_came_of_it(
    node: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path, outcome: str, words: str
) -> None:
    """The request has the map, the type, the user and whether only to validate; -o json prints the node's answer."""
    node["answer"] = {"outcome": outcome, "bucket_type": "t", "partitions": 2}
    arguments = ["partition", "assign", "--file", map_file(tmp_path, RIGHT), "--bucket-type", "t", "--by", "ann"]
    assert cli.main(arguments) == Exit.OK
    assert capsys.readouterr().out == words
    body = {"bucket_type": "t", "validate_only": False, **RIGHT, "by": "ann"}
    assert node["posted"] == ("/admin/partitions/assign", body)
    assert cli.main([*arguments, "-o", "json", "--validate-only"]) == Exit.OK
    assert json.loads(capsys.readouterr().out) == node["answer"]
    assert node["posted"][1]["validate_only"] is True


def test_a_refusal_by_a_node_is_final(node: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Nodes that do not live, or another placement: code 4, also when only validating."""
    node["status"] = 409
    node["answer"] = {"error": "placed otherwise", "reason": "placement-differs"}
    for more in ([], ["--validate-only"]):
        assert cli.main(["partition", "assign", "--file", map_file(tmp_path, RIGHT), *more]) == Exit.REFUSED
        assert capsys.readouterr().err == "isthmus: placed otherwise\n"


def test_a_bucket_type_is_a_name(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A name that could not be part of a URL or a path is refused at once."""
    path = map_file(tmp_path, RIGHT)
    assert cli.main(["partition", "assign", "--file", path, "--bucket-type", "a/b"]) == Exit.USAGE
    assert cli.main(["partition", "list", "--bucket-type", "../x"]) == Exit.USAGE
    assert "--bucket-type: " in capsys.readouterr().err
