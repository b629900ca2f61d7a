"""The command line without a cluster: nouns, config commands, exit codes, errors in one line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from isthmus.config.loader import ConfigError, Fault
from isthmus.node.cli import main as cli
from isthmus.node.cli.exit_codes import MEANINGS, CommandFailed, Exit, failure_of
from isthmus.node.cli.output import cell, echo_table, milliseconds, moment
from isthmus.repl.model.errors import BadConfig, Corruption, NotReady, OutcomeUnknown, PeerFault, TooLarge

REPOSITORY = Path(__file__).parents[3]
SAMPLE = REPOSITORY / "config" / "samples" / "node.toml"


def test_help_lists_the_commands_without_importing_them() -> None:
    """`isthmus --help` is quick: it loads neither HTTP nor tables nor any noun's module."""
    code = (
        "import sys; from isthmus.node.cli.main import main; code = main(['--help']);"
        "heavy = {'requests', 'rich', 'isthmus.node.cli.queue', 'isthmus.node.daemon'} & set(sys.modules);"
        "sys.exit(f'loaded {heavy}' if heavy else code)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"queue +Look at source queues", done.stdout)


def test_every_listed_command_has_help_and_a_matching_summary(capsys: pytest.CaptureFixture[str]) -> None:
    """Every listed noun can be loaded, and every verb has a summary."""
    context = click.Context(cli.root)
    for noun in cli.root.list_commands(context):
        command = cli.root.get_command(context, noun)
        assert command is not None
        assert command.help
        if isinstance(command, click.Group):
            assert all(verb.help for verb in command.commands.values())
        assert cli.main([noun, "--help"]) == 0
    assert "Traceback" not in capsys.readouterr().err


def test_every_exit_code_has_a_meaning() -> None:
    """The table of meanings, which docs/commands.md shows, has every exit code."""
    assert set(MEANINGS) == set(Exit)


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (BadConfig("x"), Exit.USAGE, "bad-config"),
        (ConfigError("f", [Fault("a", 1, "x")]), Exit.USAGE, "bad-config"),
        (TooLarge("x"), Exit.USAGE, "too-large"),
        (NotReady("x"), Exit.UNAVAILABLE, "not-ready"),
        (OutcomeUnknown("x"), Exit.UNAVAILABLE, "outcome-unknown"),
        (PeerFault("x"), Exit.UNAVAILABLE, "peer-fault"),
        (Corruption("x"), Exit.LOCAL_FAULT, "corruption"),
        (PermissionError(13, "Permission denied", "/data"), Exit.LOCAL_FAULT, "local-fault"),
        (CommandFailed(Exit.REFUSED, "fenced", "x"), Exit.REFUSED, "fenced"),
    ],
)
def test_failures_have_the_exit_code_of_what_the_caller_can_do(error: Exception, code: Exit, reason: str) -> None:
    """The error tree maps onto the table of exit codes."""
    failure = failure_of(error)
    assert failure is not None
    assert failure[:2] == (code, reason)


def test_a_bug_is_no_expected_failure(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """An assertion keeps its traceback and ends with the code for bugs, not with one that scripts act upon."""

    def broken() -> None:
        raise AssertionError("impossible")

    monkeypatch.setattr(cli, "check_packages", broken)
    assert cli.main(["--version"]) == Exit.BROKEN
    assert "AssertionError: impossible" in capsys.readouterr().err


def test_wrong_usage_is_one_line_and_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    """Unknown nouns, verbs and options are each reported in one line that says where to look."""
    for arguments in (
        ["quue"],
        ["queue", "lst"],
        ["queue", "list", "--x"],
        ["queue", "suspend"],
        ["queue", "list", "-o", "x"],
    ):
        assert cli.main(arguments) == Exit.USAGE
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("isthmus: ")
        assert err.count("\n") == 1
        assert "--help" in err


def test_no_arguments_show_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    """Bare `isthmus` and a bare noun print their help, as usage errors, since nothing was done."""
    assert cli.main([]) == Exit.USAGE
    assert "Basics:" in capsys.readouterr().err
    assert cli.main(["config"]) == Exit.USAGE
    assert "check" in capsys.readouterr().err


def test_config_check_reports_every_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All faults are printed at once on standard output, with line and key; code 2; the same as JSON."""
    file = tmp_path / "n.toml"
    file.write_text('[node]\nname = "n"\ncluster = 3\nwokers = 1\n')
    assert cli.main(["config", "check", str(file)]) == Exit.USAGE
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[:2] for line in lines] == [
        [f"{file}:1", "node.data_dir"],
        [f"{file}:3", "node.cluster"],
        [f"{file}:4", "node.wokers"],
    ]
    assert cli.main(["config", "check", str(file), "-o", "json"]) == Exit.USAGE
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is False
    assert answer["faults"][1] == {"key": "node.cluster", "line": 3, "message": "3 is not a text; write it in quotes"}


def test_config_check_passes_a_right_file(capsys: pytest.CaptureFixture[str]) -> None:
    """A file without faults is reported as valid, with code 0."""
    assert cli.main(["config", "check", str(SAMPLE)]) == Exit.OK
    assert capsys.readouterr().out == f"{SAMPLE}: no faults\n"
    assert cli.main(["config", "check", str(SAMPLE), "-o", "json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out) == {"file": str(SAMPLE), "ok": True, "faults": [], "warnings": []}


def test_config_check_warns_of_a_directory_of_runs_that_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The directory may be mounted later, so the code is 0; a file in its place is reported as a file."""
    file, runs = tmp_path / "n.toml", tmp_path / "runs"
    file.write_text('[node]\nname = "n"\ncluster = "c"\ndata_dir = "data"\n[reconcile]\nruns_dir = "runs"\n')
    assert cli.main(["config", "check", str(file)]) == Exit.OK
    assert f"{file}:6: warning: reconcile.runs_dir: {runs} does not exist here" in capsys.readouterr().out
    runs.write_text("")
    assert cli.main(["config", "check", str(file)]) == Exit.OK
    assert f"{runs} is not a directory" in capsys.readouterr().out
    runs.unlink()
    runs.mkdir()
    assert cli.main(["config", "check", str(file)]) == Exit.OK
    assert "reconcile.runs_dir" not in capsys.readouterr().out


def test_config_check_refuses_what_a_start_would_refuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A data directory that is a file, that would lie below one, or on a file system that keeps nothing is a fault;
    one that is not there yet is right. A time lag that the session's end overtakes is a warning."""
    taken = tmp_path / "taken"
    taken.write_text("")
    file = tmp_path / "n.toml"
    for directory, words in (
        (str(taken), f"n.toml:4: node.data_dir: {taken} is a file"),
        (str(taken / "below"), f"cannot be made: {taken} is a file"),
        ("/proc/isthmus", "without space for files, as /proc is"),
        (str(tmp_path / "not" / "there" / "yet"), "no faults"),
        (str(tmp_path), "no faults"),
    ):
        file.write_text(f'[node]\nname = "a"\ncluster = "c"\ndata_dir = "{directory}"\n')
        assert (cli.main(["config", "check", str(file)]) == Exit.OK) == (words == "no faults")
        assert words in capsys.readouterr().out
    lag = file.read_text() + '[replication]\nmax_time_lag = "{}"\n[metastore]\nsession_timeout = "6s"\n'
    for value, warned in (("30s", True), ("6s", True), ("5999ms", False)):
        file.write_text(lag.format(value))
        assert cli.main(["config", "check", str(file)]) == Exit.OK
        assert ("is not below metastore.session_timeout, 6s" in capsys.readouterr().out) is warned


def test_config_check_knows_a_topology(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A topology is checked as one, and `config show` reports that it needs a node's own file."""
    sample = REPOSITORY / "config" / "samples" / "two-nodes.toml"
    assert cli.main(["config", "check", str(sample)]) == Exit.OK
    assert capsys.readouterr().out == f"{sample}: no faults\n"
    assert cli.main(["config", "show", str(sample)]) == Exit.USAGE
    assert "is a topology" in capsys.readouterr().err
    file = tmp_path / "t.toml"
    file.write_text(sample.read_text().replace('name = "to-west"', 'nmae = "to-west"'))
    assert cli.main(["config", "check", str(file)]) == Exit.USAGE
    assert 'did you mean "name"?' in capsys.readouterr().out


NODE = """[node]
name = "{name}"
id = {id}
cluster = "east"
data_dir = "data"
[metastore]
hosts = "{hosts}"
[[queues]]
name = "to-west"
"""
FULLSYNC = """[[fullsync]]
name = "{name}"
urls = "{urls}"
queue = "to-west"
"""


def test_config_check_shows_who_compares_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One file of a cluster of several nodes shows one comparing node, a warning; with the files of all nodes the check
    shows which of them share a peer, and warns of a node that compares alone; a node with its own metastore cannot
    share."""
    files = [tmp_path / f"n{n}.toml" for n in (1, 2)]
    for n, file in enumerate(files, 1):
        file.write_text(NODE.format(name=f"n{n}", id=n, hosts="zk:1"))
    with files[0].open("a") as more:
        more.write(FULLSYNC.format(name="west", urls="http://w1:1"))
    assert cli.main(["config", "check", str(files[0]), "-o", "json"]) == Exit.OK
    (warning,) = json.loads(capsys.readouterr().out)["warnings"]
    assert (warning["key"], warning["line"]) == ("fullsync[0]", 11)
    assert "this file shows one node that compares with west" in warning["message"]
    assert cli.main(["config", "check", *map(str, files)]) == Exit.OK
    told, warned = capsys.readouterr().out.splitlines()[2:]
    assert told == "cluster east: west is compared with by n1"
    assert warned.startswith("cluster east: warning: west: only n1 compares with it, and no node when that one is gone")
    with files[1].open("a") as more:
        more.write(FULLSYNC.format(name="west", urls="http://w2:1,http://w1:1"))
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("[nod]\n")
    assert cli.main(["config", "check", *map(str, files), str(wrong), "-o", "json"]) == Exit.USAGE
    answer = json.loads(capsys.readouterr().out)
    assert [(one["ok"], one["warnings"]) for one in answer["files"]] == [(True, []), (True, []), (False, [])]
    assert answer["fullsync"] == [{"cluster": "east", "peer": "west", "shared_by": ["n1", "n2"], "warning": None}]
    files[0].write_text(NODE.format(name="n1", id=1, hosts="") + FULLSYNC.format(name="west", urls="http://w1:1"))
    assert cli.main(["config", "check", str(files[0])]) == Exit.OK
    assert capsys.readouterr().out == f"{files[0]}: no faults\n"


def test_config_show_has_values_and_origins(capsys: pytest.CaptureFixture[str]) -> None:
    """Every value in force is listed with FILE:LINE or "default", one line each."""
    assert cli.main(["config", "show", str(SAMPLE)]) == Exit.OK
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["KEY", "VALUE", "ORIGIN"]
    assert ["node.name", '"east-1"', f"{SAMPLE}:5"] in lines
    assert ["sink.delay_max", '"8s"', "default"] in lines
    assert cli.main(["config", "show", str(SAMPLE), "-o", "json"]) == Exit.OK
    values = json.loads(capsys.readouterr().out)["values"]
    assert {"key": "sink.poll", "value": '"5s"', "origin": f"{SAMPLE}:28"} in values


def test_a_node_with_faults_in_its_file_does_not_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`node run` prints every fault on standard error, a line each, with code 2, before anything is touched."""
    file = tmp_path / "n.toml"
    file.write_text('[node]\nname = "n"\n[x]\n')
    assert cli.main(["node", "run", str(file)]) == Exit.USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.partition(": ")[2].partition(": ")[2].split(":")[0] for line in err.splitlines()] == [
        "node.cluster",
        "node.data_dir",
        "x",
    ]
    assert list(tmp_path.iterdir()) == [file]


def test_a_missing_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong path is reported by name, in JSON too."""
    assert cli.main(["config", "show", str(tmp_path / "none")]) == Exit.USAGE
    assert capsys.readouterr().err == f"isthmus: {tmp_path / 'none'}: does not exist\n"
    assert cli.main(["config", "show", str(tmp_path / "none"), "-o", "json"]) == Exit.USAGE
    assert json.loads(capsys.readouterr().err)["reason"] == "bad-config"


def test_a_reader_that_went_away_is_no_failed_check() -> None:
    """`isthmus config show FILE | head -1` ends with the code of a closed pipe and no traceback."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "isthmus.node.cli.main", "config", "show", str(SAMPLE)],
        cwd=REPOSITORY,
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=30,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (Exit.PIPE_CLOSED, b"")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_no_fault(closed: str) -> None:
    """A command whose input, output or errors are closed still does its work, and ends with its own code."""
    line = f'"$0" -m isthmus.node.cli.main config show {SAMPLE} {closed}'
    done = subprocess.run(["sh", "-c", line, sys.executable], cwd=REPOSITORY, capture_output=True, timeout=30)
    assert (done.returncode, done.stderr) == (Exit.OK, b"")


def test_a_foreign_package_of_the_same_name_is_not_imported(tmp_path: Path) -> None:
    """Another package called `sink`, first on the path, is not mixed with ours."""
    stranger = tmp_path / "sink"
    stranger.mkdir()
    (stranger / "__init__.py").write_text("")
    code = (
        "import sys; from isthmus.node.cli.main import main; import isthmus.sink.service; sys.exit(main(['--version']))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}"},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.returncode, done.stderr) == (Exit.OK, "")


def test_cells_never_invent_a_value() -> None:
    """An unknown value is shown as "unknown", an empty one as a dash, and zero as zero."""
    assert [cell(value) for value in (None, "", [], 0, False, ["a", None], 1.25)] == [
        "unknown",
        "-",
        "-",
        "0",
        "no",
        "a, unknown",
        "1.2",
    ]
    assert [milliseconds(value) for value in (None, "x", True, 0, 1.84, 12_300, 600_000, 8e6)] == [
        "unknown",
        "unknown",
        "unknown",
        "0.0 ms",
        "1.8 ms",
        "12.3 s",
        "10.0 min",
        "2.2 h",
    ]


def test_moments_are_utc_or_unknown() -> None:
    """Times are shown in UTC, and invalid times as unknown."""
    assert moment(0) == "1970-01-01 00:00:00Z"
    assert moment(253_402_300_799_999) == "9999-12-31 23:59:59Z"
    assert {moment(value) for value in (None, -1, True, "x", 253_402_300_800_000)} == {"unknown"}


def test_text_in_tables_is_only_text(capsys: pytest.CaptureFixture[str]) -> None:
    """Escape sequences and markup that come from elsewhere are shown, not acted upon; a row stays a line."""
    echo_table(["a", "b"], [["\x1b[31mred\n", "[bold]x[/bold]" + "y" * 300]])
    out = capsys.readouterr().out
    assert out.splitlines()[0].split() == ["A", "B"]
    assert out.splitlines()[1].split() == ["\\x1b[31mred\\n", "[bold]x[/bold]" + "y" * 300]


def test_config_check_shows_nodes_that_would_be_taken_for_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two nodes of one cluster with the same name or id, such as the defaults, cause a warning at the second one's
    line; nodes of other clusters may share them."""
    files = [tmp_path / f"n{n}.toml" for n in (1, 2, 3)]
    for file, name, number in zip(files, ("a", "b", "a"), (1, 1, 2), strict=True):
        file.write_text(NODE.format(name=name, id=number, hosts="zk:1"))
    assert cli.main(["config", "check", *map(str, files), "-o", "json"]) == Exit.OK
    answer = json.loads(capsys.readouterr().out)
    told = [[(w["key"], w["message"].split(",")[0]) for w in one["warnings"]] for one in answer["files"]]
    assert told == [[], [("node.id", f"1 is that of {files[0]}")], [("node.name", f"a is that of {files[0]}")]]
    assert answer["files"][1]["warnings"][0]["line"] > 0
    files[2].write_text(NODE.format(name="a", id=1, hosts="zk:1").replace('"east"', '"west"'))
    assert cli.main(["config", "check", str(files[0]), str(files[2])]) == Exit.OK
    assert "warning" not in capsys.readouterr().out


def test_config_check_shows_queues_that_are_not_alike_on_all_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A queue that one node of a cluster lacks, or has with another filter or cascade, is a warning at that file; other
    limits are not, nor is a queue of another cluster."""
    queues = (
        '[[queues]]\nname = "q"\nfilter = "bucketname:a"\n[[queues]]\nname = "r"\n',
        '[[queues]]\nname = "q"\nfilter = "any"\nqueue_limit = 1000\n',
        '[[queues]]\nname = "q"\nfilter = "bucketname:a"\ncascade = true\n[[queues]]\nname = "r"\n',
        "",
    )
    files = [tmp_path / f"n{n}.toml" for n in range(4)]
    for number, (file, text) in enumerate(zip(files, queues, strict=True)):
        file.write_text(NODE.format(name=f"n{number}", id=number + 1, hosts="zk:1") + text)
    files[3].write_text(files[3].read_text().replace('"east"', '"west"'))
    assert cli.main(["config", "check", *map(str, files), "-o", "json"]) == Exit.OK
    told = [
        [(w["key"], w["message"].partition(": what")[0].partition(": changes")[0]) for w in one["warnings"]]
        for one in json.loads(capsys.readouterr().out)["files"]
    ]
    first = files[0]
    assert told == [
        [],
        [
            ("queues[1].filter", f'queue "q": "any" here and "bucketname:a" in {first}'),
            ("queues", f'this node has no queue "r", {first} has'),
        ],
        [("queues[1].cascade", f'queue "q": true here and false in {first}')],
        [],
    ]


@pytest.mark.parametrize("name", ["ca", "client"])
def test_a_secure_topology_has_no_node_named_as_another_certificate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Such a node's certificate would overwrite the authority's; without certificates the name is allowed."""
    file = tmp_path / "t.toml"
    nodes = f'[[clusters.east.nodes]]\nname = "{name}"\n'
    file.write_text("secure = true\n" + nodes)
    assert cli.main(["config", "check", str(file)]) == Exit.USAGE
    assert f'{file}:3: clusters.east.nodes[0].name: "{name}" is the name of another' in capsys.readouterr().out
    file.write_text(nodes)
    assert cli.main(["config", "check", str(file)]) == Exit.OK
