"""`isthmus node init` and `isthmus config sample`: config files that are right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cryptography import x509

from isthmus.config.loader import load_file
from isthmus.node.cli.exit_codes import Exit
from isthmus.node.cli.main import main
from isthmus.node.services.wiring import default_type_of


def dns_names(path: Path) -> set[str]:
    """Host names and addresses in a certificate."""
    found = x509.load_pem_x509_certificates(path.read_bytes())[0]
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = {str(each) for each in names.get_values_for_type(x509.IPAddress)}
    return addresses | set(names.get_values_for_type(x509.DNSName))


@pytest.mark.parametrize("form", ["--every", "--short"])
def test_a_sample_is_right(tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str) -> None:
    """`config check` finds no fault in the output of `config sample`."""
    assert main(["config", "sample", form]) == Exit.OK
    file = tmp_path / "node.toml"
    file.write_text(capsys.readouterr().out)
    assert main(["config", "check", str(file)]) == Exit.OK
    assert "no faults" in capsys.readouterr().out


def test_a_new_node_gets_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file has the given names, addresses, queues and peers; an existing file stays unchanged."""
    file = tmp_path / "east-2.toml"
    words = ["node", "init", str(file), "--name", "east-2", "--cluster-name", "east", "--host", "10.0.0.2"]
    words += ["--port", "7000", "--metastore", "zk1:2181,zk2:2181", "--factor", "3", "--queue", "to-west"]
    words += ["--peer", "http://10.1.0.1:8098", "to-east"]
    assert main([*words, "-o", "json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out)["data_dir"] == str(tmp_path / "data" / "east-2")
    settings = load_file(file)
    assert (settings.node.name, settings.node.cluster, settings.replication.factor) == ("east-2", "east", 3)
    assert [str(each) for each in (settings.listen.cluster, settings.listen.http, settings.listen.admin)] == [
        "10.0.0.2:7000", "10.0.0.2:7001", "10.0.0.2:7002",
    ]  # fmt: skip
    assert settings.queues[0].name == "to-west"
    assert settings.sink.peers[0].queue == "to-east"
    before = file.read_text()
    assert main(words) == Exit.USAGE
    assert f"{file} exists" in capsys.readouterr().err
    assert file.read_text() == before


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--name", "a b"], '--name: "a b" '),
        (["--data-dir", "~/data"], '--data-dir: "~/data"'),
        (["--host", "a b"], "--host: "),
        (["--metastore", "zk1"], "--metastore: "),
        (["--queue", "q", "--queue", "q"], '--queue: two queues are called "q"'),
        (["--peer", "west-1:8098", "q"], '--peer: "west-1:8098" is not the URL of a node; write http(s)://HOST:PORT'),
        (["--peer", "http://127.0.0.1:8098", "q"], "--peer: http://127.0.0.1:8098 is this node itself"),
        (["--factor", "3"], "--replication-factor: 3 replicas need as many nodes"),
    ],
)
def test_a_fault_is_reported_with_its_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], expected: str
) -> None:
    """The message has no line of the file, which is not written."""
    file = tmp_path / "n.toml"
    assert main(["node", "init", str(file), "--name", "east-1", "--cluster-name", "east", *words]) == Exit.USAGE
    error = capsys.readouterr().err
    assert f"isthmus: node init: {expected}" in error
    assert str(file) not in error
    assert not file.exists()


@pytest.mark.parametrize("form", ["--every", "--short"])
def test_a_node_of_an_ensemble_replicates_unless_told_otherwise(tmp_path: Path, form: str) -> None:
    """Without `--replication-factor` the key is not set, so that its default counts: 3 with an ensemble, 1 without."""
    for number, (more, factor) in enumerate((([], 1), (["--metastore", "zk1:2181,zk2:2181,zk3:2181"], 3))):
        file = tmp_path / f"{number}.toml"
        assert main(["node", "init", str(file), "--name", "east-1", "--cluster-name", "east", form, *more]) == Exit.OK
        settings = load_file(file)
        assert "replication.factor" not in settings.origins
        assert default_type_of(settings).factor == factor


def test_a_sample_sets_no_factor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An ensemble that is named later finds the default of a cluster, not a single copy."""
    assert main(["config", "sample", "--short"]) == Exit.OK
    assert "factor" not in capsys.readouterr().out


def test_a_single_copy_beside_an_ensemble_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`config check` warns of factor = 1 with metastore.hosts; neither alone is worth a warning."""
    file = tmp_path / "n.toml"
    words = ["node", "init", str(file), "--name", "east-1", "--cluster-name", "east", "--short"]
    for more, warned in (
        (["--factor", "1", "--metastore", "zk1:2181"], True),
        (["--factor", "2", "--metastore", "zk1:2181"], False),
        (["--factor", "1"], False),
        (["--metastore", "zk1:2181"], False),
    ):
        file.unlink(missing_ok=True)
        assert main([*words, *more]) == Exit.OK
        capsys.readouterr()
        assert main(["config", "check", str(file)]) == Exit.OK
        assert ("warning: replication.factor: 1 keeps a single copy" in capsys.readouterr().out) is warned


PAIR = ["--metastore", "zk1:2181", "--queue", "to-west", "--peer", "https://10.0.2.1:8098", "to-east"]
PAIR += ["--peer", "https://10.0.2.2:8098", "to-east", "--peer-cluster", "west", "--fullsync"]


def new_node(folder: Path, name: str, *words: str) -> int:
    """Write the file of a node of cluster east, with TLS and tokens of two folders beside it."""
    files = ["--tls", str(folder / "tls"), "--tokens", str(folder / "tokens")]
    command = ["node", "init", str(folder / f"{name}.toml"), "--name", name, "--cluster-name", "east", *files, *words]
    return main(command)


@pytest.mark.parametrize("form", ["--every", "--short"])
def test_the_files_of_a_secured_cluster_need_no_editor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    """TLS, tokens, an id, queues, peers and full-sync are in each file, the files that it names are made, and `config
    check` has neither a fault nor a warning about all of them."""
    for number in (1, 2, 3):
        host = ["--host", f"10.0.1.{number}", "--rack", f"r{number}"]
        assert new_node(tmp_path, f"east-{number}", form, *host, *PAIR) == Exit.OK
    settings = load_file(tmp_path / "east-2.toml")
    assert (settings.node.id, settings.node.rack) == (2, "r2")
    assert settings.tls.certificate == tmp_path / "tls" / "east-2.crt"
    assert settings.tokens.files.keys() == {"read", "write", "operate", "replicate", "admin"}
    assert [(peer.url, peer.queue, peer.cluster) for peer in settings.sink.peers] == [
        ("https://10.0.2.1:8098", "to-east", "west"),
        ("https://10.0.2.2:8098", "to-east", "west"),
    ]
    (compared,) = settings.fullsync
    assert (compared.name, compared.cluster, compared.queue) == ("west", "west", "to-west")
    assert compared.urls == "https://10.0.2.1:8098,https://10.0.2.2:8098"
    tokens = {compared.token_file, *(peer.token_file for peer in settings.sink.peers)}
    assert tokens == {tmp_path / "tokens" / "replicate.token"}
    capsys.readouterr()
    assert main(["config", "check", *(str(tmp_path / f"east-{number}.toml") for number in (1, 2, 3))]) == Exit.OK
    shown = capsys.readouterr().out
    assert shown.count("no faults") == 3
    assert "warning" not in shown
    names = dns_names(tmp_path / "tls" / "east-2.crt")
    assert {"10.0.1.2", "127.0.0.1", "localhost"} <= names


def test_a_folder_of_files_can_be_copied_to_another_machine(tmp_path: Path) -> None:
    """What lies below the file's folder is written relative to it, anything else as a whole path."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    assert new_node(here, "east-1", *PAIR, "--peer-token-file", str(tmp_path / "west.token")) != Exit.OK
    (tmp_path / "west.token").write_text("a" * 40)
    (tmp_path / "west.token").chmod(0o600)
    more = ["--peer-token-file", str(tmp_path / "west.token"), "--metastore-tls"]
    assert new_node(here, "east-1", *PAIR, *more) == Exit.OK
    here.rename(there)
    settings = load_file(there / "east-1.toml")
    assert settings.tls.metastore
    assert settings.tls.key == there / "tls" / "east-1.key"
    assert settings.tokens.admin == there / "tokens" / "admin.token"
    assert settings.sink.peers[0].token_file == tmp_path / "west.token"
    assert main(["config", "check", str(there / "east-1.toml")]) == Exit.OK


def test_what_an_authority_of_ones_own_has_signed_is_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Certificates and tokens that are there stay as they are. A certificate of another node, or an authority without
    its key and without the node's certificate, is refused, and no file is written."""
    assert new_node(tmp_path, "east-1", *PAIR) == Exit.OK
    assert "made: authority" in capsys.readouterr().out
    before = {path: path.read_bytes() for path in tmp_path.glob("t*/*") if path.stem != "client"}
    (tmp_path / "east-1.toml").unlink()
    assert new_node(tmp_path, "east-1", *PAIR) == Exit.OK
    assert "made:" not in capsys.readouterr().out
    assert {path: path.read_bytes() for path in before} == before
    (tmp_path / "tls" / "ca.key").unlink()
    assert new_node(tmp_path, "east-2", *PAIR) == Exit.USAGE
    assert "has an authority, ca.crt, and no east-2.crt" in capsys.readouterr().err
    for kind in ("crt", "key"):
        (tmp_path / "tls" / f"east-2.{kind}").write_bytes(before[tmp_path / "tls" / f"east-1.{kind}"])
        (tmp_path / "tls" / f"east-2.{kind}").chmod(0o600)
    assert new_node(tmp_path, "east-2", *PAIR) == Exit.USAGE
    assert "node init: --tls: " in capsys.readouterr().err
    assert not (tmp_path / "east-2.toml").exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--fullsync"], "--fullsync needs --peer"),
        (["--peer-cluster", "west"], "--peer-cluster needs --peer"),
        (["--peer-token-file", "t"], "--peer-token-file needs --peer"),
        (["--peer", "http://w:1", "q", "--fullsync"], "--fullsync needs --peer-cluster"),
        (["--peer", "http://w:1", "q", "--peer-cluster", "w", "--fullsync"], "--fullsync needs --queue"),
        (["--peer-ca", "f"], "--peer-ca needs --tls"),
        (["--metastore-tls"], "--metastore-tls needs --tls"),
        (["--peer", "http://w:1", "q", "--peer-cluster", "a b"], "--peer-cluster: "),
        (["--rack", "a b"], "--rack: "),
        (["--advertise", "a b"], "--advertise: "),
        (["--id", "-1"], "--id"),
    ],
)
def test_an_option_that_lacks_another_one_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], expected: str
) -> None:
    """Nothing is written, also no certificate and no token."""
    file = tmp_path / "n.toml"
    more = ["--tokens", str(tmp_path / "tokens")]
    assert main(["node", "init", str(file), "--name", "east-1", "--cluster-name", "east", *more, *words]) == Exit.USAGE
    assert expected in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_comments_of_a_file_are_plain_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A link of the pages, which a file cannot follow, is its words."""
    assert main(["config", "sample"]) == Exit.OK
    text = capsys.readouterr().out
    assert "](" not in text
    assert ".md" not in text


@pytest.mark.parametrize(("name", "words", "number"), [("east-12", [], 12), ("solo", [], 0), ("e-1", ["--id", "7"], 7)])
def test_a_node_has_the_id_that_its_name_ends_in(tmp_path: Path, name: str, words: list[str], number: int) -> None:
    """Each node of a cluster has another id, without being told."""
    file = tmp_path / "n.toml"
    assert main(["node", "init", str(file), "--name", name, "--cluster-name", "east", *words]) == Exit.OK
    assert load_file(file).node.id == number
