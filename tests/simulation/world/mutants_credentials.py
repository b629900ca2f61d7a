"""Deliberate defects of tokens and certificates."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.node.http.authorization import Guard
from isthmus.node.security import certificates
from isthmus.node.security.credentials import NodeCredentials
from isthmus.node.services.clock_watch import ClockWatch
from isthmus.repl.security.watched_files import ReloadingFile

Patch = pytest.MonkeyPatch


def permits_nobody_by_a_spoiled_file(patch: Patch) -> None:
    """A file of tokens that cannot be used takes the tokens that it had out of force."""
    sound = ReloadingFile._check

    def check(self: ReloadingFile[Any], *, forced: bool = False) -> None:
        sound(self, forced=forced)
        if self.why and isinstance(self._value, tuple):
            self._value = ()

    patch.setattr(ReloadingFile, "_check", check)


def keeps_what_it_granted(patch: Patch) -> None:
    """A token that is taken out of its file goes on to count where it was shown before."""
    sound = Guard._granted

    def granted(self: Guard, digest: bytes) -> tuple[bool, frozenset[Any]]:
        known = self.__dict__.setdefault("kept", {})
        found = sound(self, digest)
        if found[0]:
            known[digest] = found
        result: tuple[bool, frozenset[Any]] = known.get(digest, found)
        return result

    patch.setattr(Guard, "_granted", granted)


def is_silent_about_spoiled_files(patch: Patch) -> None:
    """The status does not name a file that is not in force."""
    patch.setattr(NodeCredentials, "problems", lambda self: [])


def takes_any_certificate(patch: Patch) -> None:
    """A certificate that has expired, or that names another node, comes into force."""

    def check_own(*_: Any) -> None:
        """Check nothing."""

    patch.setattr(certificates, "check_own", check_own)


def needs_a_restart_for_certificates(patch: Patch) -> None:
    """Certificates and keys are never read again."""
    sound = ReloadingFile._check

    def check(self: ReloadingFile[Any], *, forced: bool = False) -> None:
        if not any(path.suffix == ".crt" for path in self.files):
            sound(self, forced=forced)

    patch.setattr(ReloadingFile, "_check", check)


def knows_certificates_by_connections(patch: Patch) -> None:
    """A node takes the certificate that a connection has shown at its beginning for the one that its peer has now."""
    patch.setattr(ClockWatch, "certificates_expire_s", lambda self: self._links.certificates_expire_s())
