"""Contexts: the file, the commands that write it, and the settings that override it."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from isthmus.node.cli.contexts import ClusterEntry, ContextEntry, ContextFile, load, path_of_file, save, text_of
from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.node.cli.main import main
from tests.support.cluster_answers import respond_as
from tests.support.fake_admin_listener import FakeAdminListener


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of the context file in this test."""
    path = tmp_path / "config" / "contexts.toml"
    monkeypatch.setenv("ISTHMUS_CONTEXTS", str(path))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    return path


@pytest.fixture
def east() -> Iterator[FakeAdminListener]:
    """A cluster that answers."""
    fake = FakeAdminListener()
    respond_as(fake, "east")
    yield fake
    fake.close()


@pytest.fixture
def west() -> Iterator[FakeAdminListener]:
    """The listener of another cluster."""
    fake = FakeAdminListener()
    respond_as(fake, "west")
    yield fake
    fake.close()


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    """A context file with this text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def test_addresses_are_typed_once(
    file: Path, east: FakeAdminListener, west: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """A cluster is added under its own name, the first context is in use, and its first cluster is the one that is
    meant without --cluster; `use` chooses another one."""
    assert main(["context", "add", "prod", "--admin", f"http://127.0.0.1:9,{east.url}"]) == Exit.OK
    assert main(["context", "add", "prod", "--admin", west.url, "--cluster", "west"]) == Exit.OK
    assert capsys.readouterr().out.splitlines() == [
        "context prod: cluster east added, in use",
        (
            "context prod: cluster west added, in use; cluster east is meant without --cluster (isthmus context use "
            "prod --cluster NAME)"
        ),
    ]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert main(["lag", "-o", "json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out)["lag"][0]["queue"] == "to-west"
    assert main(["lag", "-o", "json", "--cluster", "west"]) == Exit.OK
    assert json.loads(capsys.readouterr().out)["lag"][0]["queue"] == "to-east"
    assert main(["context", "use", "prod", "--cluster", "west"]) == Exit.OK
    assert main(["lag", "-o", "json"]) == Exit.OK
    assert '"to-east"' in capsys.readouterr().out
    assert main(["context", "remove", "prod", "--cluster", "west"]) == Exit.OK
    assert main(["context", "add", "prod", "--admin", west.url, "--cluster", "west"]) == Exit.OK
    assert main(["lag", "-o", "json"]) == Exit.OK


def test_without_a_chosen_cluster_a_command_names_those_that_there_are(
    file: Path, east: FakeAdminListener, west: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """A context of several clusters whose chosen one was removed does not guess."""
    entries = {"east": ClusterEntry((east.url,)), "west": ClusterEntry((west.url,))}
    save(file, ContextFile({"prod": ContextEntry(entries)}, "prod"))
    assert main(["lag", "-o", "json"]) == Exit.USAGE
    assert "context prod has clusters east, west: --cluster NAME chooses one" in capsys.readouterr().err


def test_status_shows_all_clusters_of_the_context(
    file: Path, east: FakeAdminListener, west: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status shows all clusters of the context by name, one that is down too; --cluster shows one alone."""
    entries = {
        "e": ClusterEntry((east.url,)),
        "w": ClusterEntry((west.url,)),
        "n": ClusterEntry(("http://127.0.0.1:9",)),
    }
    save(file, ContextFile({"prod": ContextEntry(entries)}, "prod"))
    assert main(["status", "-o", "json"]) == Exit.UNAVAILABLE
    found = json.loads(capsys.readouterr().out)
    assert [(row["cluster"], row["answers"]) for row in found["clusters"]] == [("e", True), ("w", True), ("n", False)]
    assert [(row["from"], row["to"]) for row in found["links"]] == [("e", "w"), ("w", "e")]
    assert main(["status", "-o", "json", "--cluster", "w"]) == Exit.UNAVAILABLE, "e alone knows how far w is behind"
    found = json.loads(capsys.readouterr().out)
    assert [row["cluster"] for row in found["clusters"]] == ["w"]
    assert [row["state"] for row in found["amiss"]] == ["unknown"]
    assert main(["status", "--context", "prod", "--admin", east.url]) == Exit.USAGE
    assert "--admin names nodes, and --context a context" in capsys.readouterr().err


def test_options_count_before_variables_and_these_before_the_context(
    file: Path,
    east: FakeAdminListener,
    west: FakeAdminListener,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """--admin, then --context, then ISTHMUS_ADMIN, then ISTHMUS_CONTEXT, then the context in use."""
    contexts = {name: ContextEntry({name: ClusterEntry((url.url,))}) for name, url in (("e", east), ("w", west))}
    save(file, ContextFile(contexts, "e"))

    def asked(*words: str) -> str:
        assert main(["lag", "-o", "json", *words]) == Exit.OK
        return str(json.loads(capsys.readouterr().out)["lag"][0]["queue"])

    assert asked() == "to-west"
    monkeypatch.setenv("ISTHMUS_CONTEXT", "w")
    assert asked() == "to-east"
    monkeypatch.setenv("ISTHMUS_ADMIN", east.url)
    assert asked() == "to-west"
    assert asked("--context", "w") == "to-east"
    assert asked("--admin", west.url) == "to-east"
    assert main(["lag", "--context", "w", "--admin", west.url]) == Exit.USAGE
    assert "--admin names a node, and --context a context: give one of them" in capsys.readouterr().err


def test_a_token_of_a_context_goes_to_its_addresses_alone(
    file: Path, tmp_path: Path, east: FakeAdminListener, west: FakeAdminListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its address gets it however it is named, by --admin, ISTHMUS_ADMIN or `status --admin`, with or without http://;
    any other address does not get it. ISTHMUS_TOKEN counts before it."""
    token = written(tmp_path / "token", "0123456789abcdef0123456789abcdef\n")
    entries = {"east": ClusterEntry((east.url,), token_file=str(token))}
    save(file, ContextFile({"prod": ContextEntry(entries)}, "prod"))
    shown: list[str | None] = []
    east.on_headers = west.on_headers = lambda headers: shown.append(headers.get("Authorization"))
    own = "Bearer 0123456789abcdef0123456789abcdef"
    assert main(["lag", "-o", "json"]) == Exit.OK
    assert main(["lag", "-o", "json", "--admin", east.url]) == Exit.OK
    assert main(["lag", "-o", "json", "--admin", east.url.removeprefix("http://")]) == Exit.OK
    monkeypatch.setenv("ISTHMUS_ADMIN", f"{east.url}/")
    assert main(["lag", "-o", "json"]) == Exit.OK
    monkeypatch.delenv("ISTHMUS_ADMIN")
    assert shown == [own] * 4
    main(["status", "--admin", east.url])
    assert set(shown) == {own}
    shown.clear()
    assert main(["lag", "-o", "json", "--admin", west.url]) == Exit.OK
    assert shown == [None]
    shown.clear()
    monkeypatch.setenv("ISTHMUS_TOKEN", "f" * 32)
    assert main(["lag", "-o", "json"]) == Exit.OK
    assert shown == [f"Bearer {'f' * 32}"]


def test_a_context_knows_files_by_their_absolute_path_and_no_token(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`add` refuses paths that are not files; the token of the environment is not stored."""
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "east.token", "t" * 32)
    monkeypatch.setenv("ISTHMUS_TOKEN", "s" * 32)
    words = ["context", "add", "prod", "--cluster", "east", "--admin", "http://a:1"]
    assert main([*words, "--token-file", "east.token"]) == Exit.OK
    assert load(file).contexts["prod"].clusters["east"].token_file == str(tmp_path / "east.token")
    assert "s" * 32 not in file.read_text()
    capsys.readouterr()
    assert main([*words, "--ca", "nowhere.pem"]) == Exit.USAGE
    assert f"--ca: {tmp_path}/nowhere.pem does not exist, or is not a file" in capsys.readouterr().err
    assert main([*words, "--cert", "east.token"]) == Exit.USAGE
    assert "--cert and --key belong together" in capsys.readouterr().err


def test_contexts_are_listed_shown_and_removed(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Removing the last cluster of a context removes it; then none is in use."""
    for name, cluster in (("a", "east"), ("a", "west"), ("b", "north")):
        assert main(["context", "add", name, "--cluster", cluster, "--admin", f"http://{cluster}-1:8099"]) == Exit.OK
    capsys.readouterr()
    assert main(["context", "list", "-o", "json"]) == Exit.OK
    rows = json.loads(capsys.readouterr().out)["contexts"]
    assert [(row["context"], row["in_use"], row["clusters"]) for row in rows] == [
        ("a", True, ["east", "west"]), ("b", False, ["north"]),
    ]  # fmt: skip
    assert main(["context", "show"]) == Exit.OK
    assert "east: admin: http://east-1:8099" in capsys.readouterr().out
    assert main(["context", "remove", "a", "--cluster", "east"]) == Exit.OK
    assert list(load(file).contexts["a"].clusters) == ["west"]
    assert main(["context", "remove", "a", "--cluster", "west"]) == Exit.OK
    assert main(["context", "show"]) == Exit.USAGE
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == "context a: removed; 1 context left, none in use"
    assert "no context is in use" in err
    assert main(["context", "use", "c"]) == Exit.USAGE
    assert 'no such context: "c"; known here: b' in capsys.readouterr().err


def test_without_any_context_the_default_address_is_asked(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing file is not an error, --cluster without a context is one."""
    assert main(["context", "list"]) == Exit.OK
    assert f"there is no context in {file}" in capsys.readouterr().out
    assert main(["lag", "--cluster", "east"]) == Exit.USAGE
    assert "--cluster east: no context is in use; `isthmus context add` makes one" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "line", "sentence"),
    [
        ('current = "x"\n', 1, "current: no such context"),
        ("[contexts.a]\n", 1, "contexts.a: has 0 clusters"),
        ("\n[contexts.a.clusters.b]\ncert = '/x'\n", 2, "contexts.a.clusters.b: admin is missing"),
        ("[contexts.a.clusters.b]\nadmin = ['ftp://x:1']\n", 2, "contexts.a.clusters.b.admin: "),
        ("[contexts.a.clusters.b]\nadmin = ['http://x:1']\ntoken = 'secret'\n", 3, "a token does not belong here"),
        ("[contexts.a.clusters.b]\nadmin = ['http://x:1']\nca = 'x.pem'\n", 3, "is not an absolute path"),
        ("[contexts.a.clusters.b]\nadmin = ['http://x:1']\ncert = '/x.pem'\n", 3, "cert and key belong together"),
        ("[contexts.a.clusters.b]\nadmin = 'http://x:1'\n", 2, "write a list of URLs"),
        ("[contexts.a.clusters.b]\nadmin = []\n", 2, "has 0 addresses"),
        ("contexts = 3\n", 1, "is not a table; write sections [contexts.NAME]"),
        ("[contexts.a]\nclusters = {b = 3}\n", 2, "is not a table"),
        ("[contexts.'a b'.clusters.b]\nadmin = ['http://x:1']\n", 1, "is not a name"),
        ("[contexts.a]\ncluster = 'c'\n[contexts.a.clusters.b]\nadmin = ['http://x:1']\n", 2, "no such cluster"),
        ("current = 3\n", 1, "is not text"),
        ("[contexts]\nfoo bar\n", 2, "not TOML"),
        ("colour = 1\n", 1, "unknown key; there are current, contexts"),
    ],
)
def test_faults_of_the_file_are_told_with_their_line(
    file: Path, capsys: pytest.CaptureFixture[str], text: str, line: int, sentence: str
) -> None:
    """Each is a usage error with file, line and a valid form; it contains no secret of the file."""
    written(file, text)
    assert main(["lag"]) == Exit.USAGE
    err = capsys.readouterr().err
    assert f"isthmus: {file}:{line}: " in err
    assert sentence in err
    assert "secret" not in err


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_file_that_others_may_use_is_refused(file: Path, capsys: pytest.CaptureFixture[str], mode: int) -> None:
    """The file names credentials and the addresses that they are sent to: other users must be unable to read or change
    it."""
    written(file, "", mode)
    assert main(["lag"]) == Exit.USAGE
    assert f"has mode {mode:04o}, others may use it: chmod 600 {file}" in capsys.readouterr().err


def test_a_written_file_reads_back(tmp_path: Path) -> None:
    """A written file is read back unchanged, whatever characters its names and paths have."""
    entry = ClusterEntry(("https://a:1", "https://b:1"), ("http://a:2",), '/x "y"/\u00fc\\z', "/ca", "/cert", "/key")
    file = ContextFile({"a.b": ContextEntry({"c-1": entry, "d": ClusterEntry(("http://d:1",))}, "d")}, "a.b")
    save(tmp_path / "new" / "contexts.toml", file)
    assert load(tmp_path / "new" / "contexts.toml") == file
    assert text_of(load(tmp_path / "new" / "contexts.toml")) == text_of(file)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["contexts.toml"]


def test_a_byte_order_mark_in_the_file_is_ignored(tmp_path: Path) -> None:
    """An editor of another system may put one before the text, as in a node's file."""
    path = tmp_path / "contexts.toml"
    written = ContextFile({"prod": ContextEntry({"east": ClusterEntry(("http://e:1",))}, "east")}, "prod")
    save(path, written)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert load(path) == written


def test_the_file_is_in_the_users_config_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """XDG_CONFIG_HOME where it is an absolute path, else ~/.config."""
    monkeypatch.delenv("ISTHMUS_CONTEXTS")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    assert path_of_file() == tmp_path / ".config" / "isthmus" / "contexts.toml"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "x"))
    assert path_of_file() == tmp_path / "x" / "isthmus" / "contexts.toml"


def test_kv_asks_a_node_of_the_context_for_client_listeners(
    file: Path, east: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without addresses for clients in the context, those of the live nodes are used."""
    answer = {"nodes": [{"name": "east-1", "state": "live", "http": "http://127.0.0.1:9"}]}
    east.respond("/admin/cluster", answer)
    save(file, ContextFile({"prod": ContextEntry({"east": ClusterEntry((east.url,))})}, "prod"))
    assert main(["kv", "get", "b", "k"]) == Exit.UNAVAILABLE
    assert "http://127.0.0.1:9 does not answer" in capsys.readouterr().err
    east.respond("/admin/cluster", {"nodes": []})
    assert main(["kv", "get", "b", "k"]) == Exit.UNAVAILABLE
    assert "names no node that lives: --http URL" in capsys.readouterr().err


def test_a_cluster_is_chosen_by_option_default_or_because_it_is_the_only_one() -> None:
    """With several clusters and none of these, the error names them."""
    one, two = ContextEntry({"a": ClusterEntry(("x",))}), ContextEntry({name: ClusterEntry(("x",)) for name in "ab"})
    assert (one.chosen("c", ""), two.chosen("c", "b")) == ("a", "b")
    assert ContextEntry(two.clusters, "b").chosen("c", "") == "b"
    with pytest.raises(CommandFailed, match="context c has clusters a, b"):
        two.chosen("c", "")
    with pytest.raises(CommandFailed, match='context c: no such cluster: "z"'):
        two.chosen("c", "z")
