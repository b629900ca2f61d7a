"""Certificates and tokens that are replaced while a node runs: what is unusable does not come into force, and is
reported."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from isthmus.config.loader import load_text
from isthmus.config.settings import PeerSettings
from isthmus.node.security import certificates
from isthmus.node.security.credentials import NodeCredentials, file_faults
from isthmus.repl.security import watched_files
from isthmus.repl.security.tls import NodeName
from isthmus.repl.security.watched_files import ReloadingFile
from tests.support.tls_files import CertificateFolder, filled

NODE = '[node]\nname = "a"\ncluster = "c"\ndata_dir = "data"\n'
TLS = '[tls]\ncertificate = "a.crt"\nkey = "a.key"\nauthority = "ca.crt"\n'
PEER = PeerSettings("https://127.0.0.1:1", "q", "west")
ME = NodeName("c", "a")


@pytest.fixture(name="own")
def _own(tmp_path: Path) -> CertificateFolder:
    return filled(tmp_path)


def loaded(own: CertificateFolder, more: str = "") -> NodeCredentials:
    """The credentials of node c/a, with a sink's contexts among them."""
    credentials = NodeCredentials(load_text(NODE + TLS + more, own.path / "node.toml"))
    credentials.access_to(PEER)
    return credentials


def contexts(credentials: NodeCredentials) -> list[ssl.SSLContext]:
    """The contexts in force: of both listeners, of both ends of links, of the sink."""
    found = [listener.contexts() for listener in credentials.listeners.values()]
    assert credentials.links is not None
    access = credentials.access_to(PEER).contexts
    assert access is not None
    return [*found, credentials.links.server.current(), credentials.links.client.current(), access()]


def show(own: CertificateFolder, pair: certificates.Pair) -> None:
    """Replace the node's certificate and key."""
    certificates.write_pair(pair, own.path / "a.crt", own.path / "a.key")


def authority(own: CertificateFolder, name: str) -> certificates.Pair:
    """An authority of the folder."""
    return certificates.read_pair(own.path / f"{name}.crt", own.path / f"{name}.key")


@pytest.mark.parametrize(
    ("signed_by", "name", "days", "words"),
    [
        ("other", ME, 10, "is signed by none of the authorities"),
        ("ca", NodeName("west", "west-1"), 10, "must name this node, isthmus://c/a"),
        ("ca", ME, -1, "has expired on"),
    ],
)
def test_a_certificate_that_config_check_refuses_does_not_come_into_force(
    own: CertificateFolder, signed_by: str, name: NodeName, days: float, words: str
) -> None:
    """Of another authority, of another node, expired: SIGHUP reports the sentence of `config check` once, the status
    repeats it, every listener and client goes on with what it had, and other nodes hear when that expires. A right
    certificate ends the trouble."""
    credentials = loaded(own)
    before, expired_ms = contexts(credentials), credentials.certificate_expires_ms()
    show(own, certificates.issue(authority(own, signed_by), "x", [name], days=days))
    (trouble,) = credentials.reload()
    assert words in trouble
    assert trouble in [fault.message for fault in file_faults(load_text(NODE + TLS, own.path / "node.toml"))]
    assert any(trouble in problem for problem in credentials.problems())
    assert contexts(credentials) == before
    assert credentials.certificate_expires_ms() == expired_ms
    show(own, certificates.issue(authority(own, "ca"), "x", [ME], days=100))
    assert not credentials.reload()
    assert credentials.certificate_expires_ms() == certificates.expires_ms(own.path / "a.crt") != expired_ms
    assert not credentials.problems()
    assert not set(contexts(credentials)) & set(before)


def test_a_change_of_authority_by_a_bundle_of_two_comes_into_force_at_each_step(own: CertificateFolder) -> None:
    """Append the new authority, replace the certificate, remove the old authority: no step is refused. To remove the
    old one first is: this node's certificate would be of no authority that it knows."""
    credentials = loaded(own)
    old, new = own.authority.read_bytes(), (own.path / "other.crt").read_bytes()
    own.authority.write_bytes(new)
    assert "is signed by none of the authorities" in credentials.reload()[0]
    own.authority.write_bytes(old + new)
    assert not credentials.reload()
    show(own, certificates.issue(authority(own, "other"), "x", [ME], days=100))
    assert not credentials.reload()
    own.authority.write_bytes(new)
    assert not credentials.reload()
    assert not credentials.problems()


@pytest.mark.parametrize("first", ["a.crt", "a.key"])
def test_certificate_and_key_are_replaced_one_after_the_other(own: CertificateFolder, first: str) -> None:
    """Between the two the previous pair stays in force, and afterwards both are new, in either order."""
    credentials = loaded(own)
    before = contexts(credentials)
    new = own.path / "new"
    new.mkdir()
    certificates.write_pair(certificates.issue(authority(own, "ca"), "x", [ME], days=100), new / "a.crt", new / "a.key")
    (new / first).replace(own.path / first)
    assert "the key is not that of the certificate" in credentials.reload()[0]
    assert contexts(credentials) == before
    (second,) = new.iterdir()
    second.replace(own.path / second.name)
    assert not credentials.reload()
    assert not set(contexts(credentials)) & set(before)


def test_a_certificate_for_clients_alone_need_not_name_the_node(own: CertificateFolder) -> None:
    """`tls.http_certificate` may be of a public authority: it is replaced without the check of the node's own."""
    public = certificates.make_authority("public")
    files = own.path / "public.crt", own.path / "public.key"
    certificates.write_pair(certificates.issue(public, "x", hosts=["example.org"], days=100), *files)
    credentials = loaded(own, 'http_certificate = "public.crt"\nhttp_key = "public.key"\n')
    before = credentials.listeners["http"].contexts()
    certificates.write_pair(certificates.issue(public, "y", hosts=["example.org"], days=100), *files)
    assert not credentials.reload()
    assert credentials.listeners["http"].contexts() is not before


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"short\n", "not a token"),
        (b"\xff\xfe\n", "is UTF-16: save it as ASCII"),
        (b"caf\xe9\n", "something other than tokens"),
        (None, "no such file"),
    ],
)
@pytest.mark.parametrize("by_signal", [True, False])
def test_a_broken_token_file_is_a_problem_in_the_status(
    own: CertificateFolder, content: bytes | None, words: str, by_signal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old token stays in force: the status of the node and the metric show it, whether SIGHUP had the file read
    again or nothing has used it since; a right file ends the problem."""
    monkeypatch.setattr(watched_files, "RECHECK_S", 0.0)
    credentials = loaded(own, '[tokens]\nadmin = "admin.token"\n')
    file = own.path / "admin.token"
    before = file.read_bytes()
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    if by_signal:
        (trouble,) = credentials.reload()
        assert words in trouble
    (problem,) = credentials.problems()
    assert problem.startswith("a changed file of node a is not in force: ")
    assert words in problem
    assert reloads(credentials)["failed"] >= 2  # a guard for each listener
    file.write_bytes(before)
    file.chmod(0o600)
    assert not credentials.problems()


def reloads(credentials: NodeCredentials) -> dict[str, float]:
    """The values of isthmus_secret_file_reloads_total, by outcome."""
    name = "isthmus_secret_file_reloads_total"
    return {labels["outcome"]: value for found, labels, value in credentials.samples() if found == name}


def test_a_failed_reload_is_repeated_though_its_own_files_did_not_change(tmp_path: Path) -> None:
    """What refused it may be another file or the time: with peer_authority a sink's contexts do not have `authority`
    among their files, but their check reads it."""
    now = [0.0]
    verdicts = iter(["first", certificates.BadConfig("the other file"), "second"])

    def load() -> str:
        verdict = next(verdicts)
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    file = tmp_path / "file"
    file.touch()
    watched = ReloadingFile((file,), load, lambda: now[0])
    assert watched.reload() == "the other file"
    assert watched.current() == "first"
    now[0] += 2.0
    assert watched.current() == "second"
    assert watched.why == ""
