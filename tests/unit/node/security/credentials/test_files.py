"""Files of tokens, keys and certificates: written completely or not at all, and reported wherever they are
configured."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from isthmus.config.loader import ConfigError, load_text
from isthmus.config.warnings import warnings_of
from isthmus.node.cli import main as cli
from isthmus.node.cli.exit_codes import Exit
from isthmus.node.local import dev_certificates
from isthmus.node.security import certificates
from isthmus.node.security.credentials import file_faults
from isthmus.repl.model.errors import BadConfig, LocalFault
from isthmus.repl.security import tokens
from isthmus.repl.security.tls import server_contexts
from tests.support.tls_files import filled

NODE = '[node]\nname = "a"\ncluster = "c"\ndata_dir = "data"\n'
FULLSYNC = '[[fullsync]]\nname = "w"\nurls = "http://127.0.0.1:1,{0}"\nqueue = "q"\ntoken_file = "t"\n'


def test_a_token_file_that_is_emptied_before_it_is_written_changes_nothing(tmp_path: Path) -> None:
    """A shell redirection empties the file first: the previous tokens stay valid until there are others. A file with
    only a comment is intended, and permits nobody."""
    file = tmp_path / "t"
    file.write_text("old-token-0123456789\n")
    file.chmod(0o600)
    now = [0.0]
    watched = tokens.ReloadingFile((file,), lambda: tokens.read_digests(file), lambda: now[0])

    def good(token: str) -> bool:
        now[0] += 2.0
        return tokens.is_among(tokens.digest_of(token.encode()), watched.current())

    file.write_bytes(b"")
    assert good("old-token-0123456789")
    assert "is empty" in watched.why
    file.write_text("new-token-0123456789\n")
    assert good("new-token-0123456789")
    file.write_text("# nobody\n")
    assert not good("new-token-0123456789")


def test_a_file_that_cannot_be_written_is_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full when a token is created or a certificate is renewed: no partial file and no temporary file with
    secrets is left."""
    dev_certificates.make_tokens(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    (tmp_path / "read.token").unlink()

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(LocalFault, match="No space left"):
        dev_certificates.make_tokens(tmp_path)
    with pytest.raises(OSError, match="No space left"):
        certificates.write_file(tmp_path / "admin.token", b"x", certificates.PRIVATE)
    del before["read.token"]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("name", ["ca", "client"])
def test_no_node_takes_the_place_of_the_authority(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """A node of that name would overwrite the key that signs all other certificates."""
    assert cli.main(["dev", "certs", str(tmp_path), "--cluster", "c", "--node", "a"]) == Exit.OK
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert cli.main(["dev", "certs", str(tmp_path), "--cluster", "c", "--node", name]) == Exit.USAGE
    assert "rename the node" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("more", [["--host", "ü.example"], ["--host", ""], ["--host", "a b"], ["--days", "nan"]])
def test_an_invalid_certificate_name_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    """An invalid host or number of days gives one line, no traceback and no certificate."""
    assert cli.main(["dev", "certs", str(tmp_path), "--cluster", "c", "--node", "a", *more]) == Exit.USAGE
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "a.crt").exists()
    assert cli.main(["dev", "certs", str(tmp_path), "--cluster", "c", "--node", "a", "--host", "*.example"]) == Exit.OK


def test_the_token_of_a_full_sync_is_looked_at_as_a_sinks_is(tmp_path: Path) -> None:
    """A missing token file is a fault before a node starts. A token in plain text, or for a cluster without proof of
    identity, gives warnings."""
    settings = load_text(NODE + FULLSYNC.format("http://10.0.0.2:1") + 'cluster = "west"\n', tmp_path / "node.toml")
    assert [fault.path for fault in file_faults(settings)] == ["fullsync[0].token_file"]
    assert [doubt.path for doubt in warnings_of(settings)] == ["fullsync[0].urls", "fullsync[0].cluster"]
    settings = load_text(NODE + FULLSYNC.format("https://10.0.0.2:1"), tmp_path / "node.toml")
    assert not list(warnings_of(settings))


@pytest.mark.parametrize("line", ['admin = "allow"', 'cluster = "prefer"', 'client_certificates = "required"'])
def test_unusable_credentials_are_a_fault(tmp_path: Path, line: str) -> None:
    """If encryption is configured without a certificate, the node would silently accept unencrypted connections.
    Writing out the default is allowed, with a warning."""
    with pytest.raises(ConfigError) as error:
        load_text(f"{NODE}[tls]\n{line}\n", tmp_path / "node.toml")
    assert [fault.path for fault in error.value.faults] == [f"tls.{line.split()[0]}"]
    off = load_text(f'{NODE}[tls]\nhttp = "off"\nadmin = "off"\ncluster = "off"\n', tmp_path / "node.toml")
    assert not list(warnings_of(off))
    required = load_text(f'{NODE}[tls]\nhttp = "require"\n', tmp_path / "node.toml")
    assert [doubt.path for doubt in warnings_of(required)] == ["tls.http"]


def test_an_empty_token_file_is_reported_before_a_node_starts(tmp_path: Path) -> None:
    """With an empty token file, nobody could authenticate."""
    (tmp_path / "t").touch(mode=0o600)
    with pytest.raises(BadConfig, match="is empty"):
        tokens.read_digests(tmp_path / "t")


def test_no_certificate_outlives_its_authority(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A certificate ends no later than its authority; an expired authority issues none."""
    assert cli.main(["dev", "certs", str(tmp_path), "--cluster", "c", "--node", "a", "--days", "2"]) == Exit.OK
    assert cli.main(["dev", "certs", str(tmp_path), "--cluster", "c", "--node", "b", "--days", "30"]) == Exit.OK
    assert certificates.expires_ms(tmp_path / "b.crt") <= certificates.expires_ms(tmp_path / "ca.crt")
    expired = certificates.make_authority(days=-1)
    certificates.write_pair(expired, tmp_path / "ca.crt", tmp_path / "ca.key")
    assert cli.main(["dev", "certs", str(tmp_path), "--cluster", "c", "--node", "d"]) == Exit.USAGE
    assert "has expired, so no node would trust what it signs" in capsys.readouterr().err
    assert not (tmp_path / "d.crt").exists()


@pytest.mark.parametrize("read", [tokens.read_token, tokens.read_digests])
def test_a_huge_token_file_is_reported_and_not_read(tmp_path: Path, read: Callable[[Path], object]) -> None:
    """If a log or a disk image is configured by mistake only its first bytes are read, although the file is checked
    each second."""
    file = tmp_path / "t"
    file.write_text("a-token-0123456789\n")
    file.chmod(0o600)
    os.truncate(file, 1 << 40)
    with pytest.raises(BadConfig, match="larger than 64000 bytes"):
        read(file)


@pytest.mark.parametrize("named", ["a.crt", "a.key", "ca.crt"])
def test_a_huge_certificate_or_key_file_is_reported_and_not_read(tmp_path: Path, named: str) -> None:
    """The same holds for files of TLS: OpenSSL would read them completely, on the event loop."""
    made = filled(tmp_path)
    (tmp_path / named).write_text("x")
    os.truncate(tmp_path / named, 1 << 40)
    with pytest.raises(BadConfig, match=f"{named} is larger than 1000000 bytes"):
        server_contexts(made.files("a"), ssl.CERT_REQUIRED)


def test_a_password_is_the_first_line_of_a_private_file(tmp_path: Path) -> None:
    """Spaces are part of it, the end of the line is not; what is no password is refused without being repeated, and the
    file is checked with the config."""
    file = tmp_path / "p"
    for text, password in (("a b\nmore\n", "a b"), ("ö\r\n", "ö"), ("x", "x")):
        file.write_text(text)
        file.chmod(0o600)
        assert tokens.read_password(file) == password
    for raw in (b"", b"\nsecret", b"se\x00cret", b"\xff\xfesecret", b"secret" * 100):
        file.write_bytes(raw)
        with pytest.raises(BadConfig) as found:
            tokens.read_password(file)
        assert "secret" not in str(found.value)
    peers = '[[riak.peers]]\nname = "r"\nurls = "http://127.0.0.1:1"\nqueue = "q"\nuser = "u"\npassword_file = "p"\n'
    settings = load_text(NODE + peers, tmp_path / "n.toml")
    assert [path for path, _ in file_faults(settings)] == ["riak.peers[0].password_file"]
    file.write_text("secret")
    file.chmod(0o644)
    assert "every user of this machine" in next(iter(file_faults(settings))).message
