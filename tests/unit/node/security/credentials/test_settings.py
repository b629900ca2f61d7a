"""[tls] and [tokens] of a node: faults are reported before it starts, warnings and expiry in time."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from isthmus.config.loader import ConfigError, load_text
from isthmus.config.settings import PeerSettings, Settings
from isthmus.config.warnings import warnings_of
from isthmus.node.cli import main as cli
from isthmus.node.local import dev_certificates
from isthmus.node.security import certificates
from isthmus.node.security.credentials import NodeCredentials, file_faults
from isthmus.repl.machine import machine
from isthmus.repl.model.errors import BadConfig
from isthmus.repl.security.tls import NodeName
from tests.support.tls_files import CertificateFolder, filled

NODE = """\
[node]
name = "a"
cluster = "c"
data_dir = "data"
"""


def loaded(folder: Path, more: str) -> Settings:
    """The settings of a node's file in the folder."""
    return load_text(NODE + more, folder / "node.toml")


def tls(pair: str = "a", more: str = "") -> str:
    """A section [tls] that shows `pair`."""
    return f'[tls]\ncertificate = "{pair}.crt"\nkey = "{pair}.key"\nauthority = "ca.crt"\n{more}'


def faults(folder: CertificateFolder, more: str) -> list[str]:
    """The faults of the files, as "key: sentence"."""
    return [f"{path}: {message}" for path, message in file_faults(loaded(folder.path, more))]


def test_right_files_are_taken(folder: CertificateFolder) -> None:
    """A matching pair and valid tokens have no faults, and all three listeners have TLS."""
    settings = loaded(folder.path, tls() + '[tokens]\nread = "read.token"\nadmin = "admin.token"\n')
    assert not list(file_faults(settings))
    locks = NodeCredentials(settings)
    assert set(locks.listeners) == {"http", "admin"}
    assert locks.links is not None
    assert locks.certified_sinks
    assert all(locks.guards.values())
    assert not locks.problems()
    names = {name for name, _, _ in locks.samples()}
    assert "isthmus_tls_certificate_expiry_timestamp_seconds" in names


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        ("b", "tls.certificate: {0}/b.crt: must name this node, isthmus://c/a, among its alternative names; it names"),
        ("client", "it names no node"),
        ("absent", "tls.key: {0}/absent.key: no such file or directory"),
    ],
)
def test_a_certificate_that_peers_would_refuse_is_reported_at_once(
    folder: CertificateFolder, pair: str, words: str
) -> None:
    """A certificate of another node, of no node, or a missing one gives a sentence with the key and the file; a node
    does not start with it."""
    assert words.format(folder.path) in "\n".join(faults(folder, tls(pair)))
    with pytest.raises(BadConfig, match=r"tls\.(certificate|key)"):
        NodeCredentials(loaded(folder.path, tls(pair)))


def test_expired_foreign_mismatched_and_readable_files_are_reported(tmp_path: Path) -> None:
    """An expired certificate, one of another authority, the key of another, a key that all may read, no PEM at all."""
    own = filled(tmp_path)
    authority = certificates.read_pair(own.authority, tmp_path / "ca.key")
    me = [NodeName("c", "a")]
    old = certificates.issue(authority, "old", me, days=-1)
    certificates.write_pair(old, tmp_path / "old.crt", tmp_path / "old.key")
    assert "has expired on" in faults(own, tls("old"))[0]
    strange = certificates.issue(certificates.make_authority(), "x", me)
    certificates.write_pair(strange, tmp_path / "x.crt", tmp_path / "x.key")
    assert "is signed by none of the authorities" in faults(own, tls("x"))[0]
    (tmp_path / "x.crt").write_bytes((tmp_path / "a.crt").read_bytes())
    assert "the key is not that of the certificate" in faults(own, tls("x"))[0]
    (tmp_path / "a.key").chmod(0o644)
    assert "chmod o-rw" in faults(own, tls())[0]
    (tmp_path / "a.key").chmod(0o600)
    (tmp_path / "ca.crt").write_text("nothing")
    assert any("holds no certificates in PEM form" in fault for fault in faults(own, tls()))


def test_a_near_expiry_is_reported(tmp_path: Path) -> None:
    """A certificate with less than `expiry_warning` left is reported as a problem, for this node and for connected
    ones."""
    dev_certificates.make_certificates(tmp_path, [NodeName("c", "a")], days=3)
    locks = NodeCredentials(loaded(tmp_path, tls()))
    told = locks.problems()
    assert any(each.startswith("tls.certificate of node a expires on") for each in told)
    assert not NodeCredentials(loaded(tmp_path, tls(more='expiry_warning = "1d"\n'))).problems()


def test_a_certificate_that_has_expired_or_is_about_to_is_urgent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With three days left it is a problem, with less than two, or none, an urgent one; its file is named."""
    dev_certificates.make_certificates(tmp_path, [NodeName("c", "a")], days=3)
    locks = NodeCredentials(loaded(tmp_path, tls()))
    now_s = time.time()
    found = []
    for later_days in (0, 1.5, 4):
        at_ns = int((now_s + later_days * 86_400) * 1e9)
        monkeypatch.setattr(machine(), "wall_ns", lambda at_ns=at_ns: at_ns)
        assert set(locks.urgent()) <= set(locks.problems())
        found.append([each for each in locks.urgent() if each.startswith("tls.certificate of node a")])
    assert found[0] == []
    assert "expires on" in found[1][0]
    assert "has expired on" in found[2][0]
    assert str(tmp_path) in found[2][0]


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ('[tls]\nkey = "k"\n', "tls.key"),
        ('[tls]\ncertificate = "c"\nkey = "k"\n', "tls.certificate"),
        ('[tls]\nhttp_certificate = "c"\nhttp_key = "k"\n', "tls.http_certificate"),
        ('[tls]\nauthority = "a"\nmetastore = true\n', "tls.metastore"),
        ('[tls]\ncluster = "sometimes"\n', "tls.cluster"),
        ('[tokens]\nread = ["x"]\n', "tokens.read"),
    ],
)
def test_settings_that_do_not_go_together_are_faults(tmp_path: Path, more: str, key: str) -> None:
    """Covered are half a pair, no authority, TLS to an embedded metastore, and invalid choices."""
    with pytest.raises(ConfigError) as error:
        loaded(tmp_path, more)
    assert [fault.path for fault in error.value.faults] == [key]


@pytest.mark.parametrize(
    ("more", "keys"),
    [
        ("", []),
        ('[listen]\nadmin = "0.0.0.0:8099"\n', ["listen.admin"]),
        ('[listen]\nadmin = "10.0.0.1:8099"\n' + tls(), ["listen.admin"]),
        ('[listen]\nadmin = "10.0.0.1:8099"\n' + tls() + '[tokens]\nadmin = "t"\n', []),
        ('[tokens]\nread = "t"\n', ["tokens"]),
        ('[listen]\nhttp = "10.0.0.1:8098"\n[tokens]\nadmin = "t"\n', ["listen.http"]),
        ('[listen]\ncluster = "10.0.0.1:8097"\n' + tls(more='cluster = "prefer"\n'), ["tls.cluster"]),
        ('[[sink.peers]]\nurl = "http://10.0.0.2:1"\nqueue = "q"\ntoken_file = "t"\n', ["sink.peers[0].url"]),
    ],
)
def test_open_listeners_are_warned_about(tmp_path: Path, more: str, keys: list[str]) -> None:
    """Covered are an admin listener for others without TLS and tokens, tokens in plain text, and nodes that may connect
    without TLS."""
    assert [doubt.path for doubt in warnings_of(loaded(tmp_path, more))] == keys


def test_config_check_looks_at_the_files_and_warns(
    folder: CertificateFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    """Faults of files have the line of their key and end with 2; warnings are printed and end with 0; neither `check`
    nor `show` prints what is in the files."""
    file = folder.path / "checked.toml"
    file.write_text(NODE + tls("b") + '[tokens]\nadmin = "admin.token"\n')
    assert cli.main(["config", "check", str(file)]) == 2
    assert f"{file}:6: tls.certificate: " in capsys.readouterr().out
    file.write_text(NODE + '[listen]\nadmin = "0.0.0.0:1"\n' + tls("a") + '[tokens]\nread = "read.token"\n')
    assert cli.main(["config", "check", str(file)]) == 0
    assert "warning: tokens: no admin tokens" in capsys.readouterr().out
    assert cli.main(["config", "check", "-o", "json", str(file)]) == 0
    assert [each["key"] for each in json.loads(capsys.readouterr().out)["warnings"]] == ["tokens"]
    assert cli.main(["config", "show", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "read.token" in shown
    assert (folder.path / "read.token").read_text().strip() not in shown
    assert "PRIVATE" not in shown


def test_dev_makes_what_nodes_take(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`dev certs` for nodes by name and for a topology, with one authority; `dev tokens` keeps what is there."""
    sample = Path(__file__).parents[5] / "config" / "samples" / "two-clusters.toml"
    assert cli.main(["dev", "certs", str(tmp_path), "--cluster", "c", "--node", "a"]) == 0
    authority = (tmp_path / "ca.crt").read_bytes()
    assert cli.main(["dev", "certs", str(tmp_path), "--for", str(sample), "-o", "json"]) == 0
    out = capsys.readouterr().out
    names = {row["name"] for row in json.loads(out[out.index("{") :])["certificates"]}
    assert names == {f"isthmus://{cluster}/{cluster}-{n}" for cluster in ("east", "west") for n in (1, 2, 3)}
    assert (tmp_path / "ca.crt").read_bytes() == authority
    assert not list(file_faults(loaded(tmp_path, tls())))
    assert cli.main(["dev", "tokens", str(tmp_path)]) == 0
    token = (tmp_path / "admin.token").read_text()
    assert cli.main(["dev", "tokens", str(tmp_path)]) == 0
    assert (tmp_path / "admin.token").read_text() == token
    assert cli.main(["dev", "certs", str(tmp_path)]) == 2
    assert token.strip() not in capsys.readouterr().out


def test_repeated_requests_to_a_peer_watch_no_more_files(folder: CertificateFolder) -> None:
    """An explanation of a key and a round of repairs request the peer's credentials each time: the number of watched
    files does not grow."""
    locks = NodeCredentials(loaded(folder.path, tls()))
    token = folder.path / "replicate.token"
    peers = [
        PeerSettings("https://127.0.0.1:1", "q", "west", token),
        PeerSettings("https://127.0.0.1:1", "q", "", token),
        PeerSettings("https://127.0.0.1:1", "q", "west"),
        PeerSettings("http://127.0.0.1:1", "q", "west", token),
    ]
    first = [locks.access_to(peer) for peer in peers]
    assert len(set(first)) == 4
    watched = len(locks._watched)
    for _ in range(20):
        assert [locks.access_to(peer) for peer in peers] == first
    assert len(locks._watched) == watched
