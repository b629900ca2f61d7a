"""Settings of the locks: certificates and tokens, which all lie in files of their own.

Paths only: no secret ever stands in a config file, so that showing one shows none. What is only doubtful is
`config.doubts`'; files are read in `repl.transport.tls` and
`repl.transport.tokens`. docs/security.md says how to turn it on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """[tls]: who this node is to others, and whom it believes. Without a certificate nothing is encrypted."""

    certificate: Path | None = None
    """This node's certificate, followed by those between it and its authority. Names the node:
    `URI:isthmus://CLUSTER/NODE`. Empty: nothing is encrypted."""

    key: Path | None = None
    """The certificate's private key, without a password."""

    authority: Path | None = None
    """Who may sign for the nodes of this cluster; several certificates may follow each other."""

    peer_authority: Path | None = None
    """Who may sign for nodes of other clusters and for clients. Empty: `authority`."""

    http_certificate: Path | None = None
    """What the `http` listener shows instead of `certificate`, such as one of an authority that every client knows."""

    http_key: Path | None = None
    """Its private key."""

    http: str = "require"
    """The `http` listener. `allow` takes connections with and without TLS, on the same port."""

    admin: str = "require"
    """The `admin` listener."""

    cluster: str = "require"
    """Between nodes of the cluster. `allow` takes both and dials without, `prefer` takes both and dials with TLS. These
    two are for turning it on node by node."""

    client_certificates: str = "optional"
    """`required`: a connection to `http` or `admin` without a certificate is refused, whatever token it has."""

    metastore: bool = False
    """Speak TLS to the ZooKeepers of `metastore.hosts`, whose certificates name their hosts. It shows this node's
    certificate and trusts `authority`."""

    expiry_warning_ms: int = 1_209_600_000
    """How long before a certificate expires logs and `isthmus cluster status` say so. Two weeks leave time to act."""

    def mode(self, listener: str) -> str:
        """What `listener` ("http", "admin", "cluster") does about TLS; "off" where there is no certificate."""
        assert listener in ("http", "admin", "cluster")
        found: str = getattr(self, listener)
        return "off" if self.certificate is None else found


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """[tokens]: files of bearer tokens, a role each. Without any, whoever reaches a listener may do everything."""

    read: Path | None = None
    """May look at everything and change nothing."""

    write: Path | None = None
    """May also write objects."""

    operate: Path | None = None
    """May also suspend, resume, balance, and set bucket properties."""

    replicate: Path | None = None
    """For sinks of other clusters: may fetch from queues, nothing else."""

    admin: Path | None = None
    """May do everything."""

    http_open: str = "nothing"
    """What the `http` listener answers without a token."""

    metrics_open: bool = False
    """Answer `/metrics` without a token. For a Prometheus that has none."""

    @property
    def files(self) -> dict[str, Path]:
        """Role -> its file, of those that are set."""
        found = {role: getattr(self, role) for role in ("read", "write", "operate", "replicate", "admin")}
        return {role: path for role, path in found.items() if path is not None}


NO_TLS: Final = TlsSettings()
NO_TOKENS: Final = TokenSettings()
"""Both stand for "not turned on": the defaults."""


UNENCRYPTED: Final = ": without one nothing is encrypted, and nobody is asked for theirs"


def broken_locks(tls: TlsSettings, *, named_metastore: bool) -> Iterator[tuple[tuple[str, ...], str]]:
    """Relations within [tls] that do not hold, as `config.rules.Broken`. `named_metastore`: it is no embedded one."""
    if tls.certificate is None:
        for key in ("http", "admin", "cluster"):
            if getattr(tls, key) in ("allow", "prefer"):
                yield (f"tls.{key}", "tls.certificate"), f'"{getattr(tls, key)}" needs tls.certificate{UNENCRYPTED}'
        if tls.client_certificates == "required":
            yield ("tls.client_certificates", "tls.certificate"), f'"required" needs tls.certificate{UNENCRYPTED}'
    for certificate, key in (("certificate", "key"), ("http_certificate", "http_key")):
        has = getattr(tls, certificate) is not None, getattr(tls, key) is not None
        if has[0] != has[1]:
            given, missing = (certificate, key) if has[0] else (key, certificate)
            yield (f"tls.{given}",), f"a certificate and its key belong together: set tls.{missing}, too"
    if tls.certificate is not None and tls.authority is None:
        yield ("tls.certificate",), "set tls.authority, too: who may sign for the other nodes"
    if tls.http_certificate is not None and tls.certificate is None:
        yield ("tls.http_certificate",), "set tls.certificate, too: it is what other nodes and clusters know"
    if tls.metastore and tls.authority is None:
        yield ("tls.metastore",), "set tls.authority, too: who may sign for the ZooKeepers"
    if tls.metastore and not named_metastore:
        yield ("tls.metastore",), "the embedded metastore listens on loopback without TLS; name metastore.hosts"
