"""Bearer tokens: read from files, kept as digests, compared in constant time, never shown.

Each line of a file is a token, or `sha256:` and its digest in hex; "#" begins a comment. A client needs the token
itself, a server only digests. `node.http.authorization` decides what a token may do.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Final

from isthmus.repl.model.errors import BadConfig
from isthmus.repl.security.watched_files import ReloadingFile, check_private, encoding_fault

TOKENS_MAX: Final = 64
"""Most tokens of a file: each request is compared with all of them. Rotation needs two."""

FILE_BYTES_MAX: Final = 64_000
"""Largest file of tokens; a larger file was configured by mistake."""

_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/=-]{16,512}", re.ASCII)
_DIGEST: Final = re.compile(r"sha256:([0-9a-fA-F]{64})", re.ASCII)

FORM: Final = "a token is 16 to 512 of A-Z a-z 0-9 - . _ ~ + / =, or sha256: and 64 hex digits"

PEM: Final = b"-----BEGIN "
"""Part of files of keys and certificates, whose lines look like tokens."""


def digest_of(token: bytes) -> bytes:
    """Digest of a token. Tokens are long and random, so that a plain hash is enough."""
    return sha256(token).digest()


def read_digests(path: Path) -> tuple[bytes, ...]:
    """The digests of a file's tokens. Raises BadConfig, which never repeats the file's content."""
    found = []
    for number, line in _lines(path):
        hashed = _DIGEST.fullmatch(line)
        if hashed is not None:
            found.append(bytes.fromhex(hashed[1]))
        elif _TOKEN.fullmatch(line) is not None:
            found.append(digest_of(line.encode()))
        else:
            raise BadConfig(f"{path}:{number}: not a token; {FORM}")
    if len(found) > TOKENS_MAX:
        raise BadConfig(f"{path} holds {len(found)} tokens, at most {TOKENS_MAX} are allowed")
    return tuple(found)


def read_token(path: Path) -> str:
    """The first plain token of a file. Raises BadConfig."""
    for _, line in _lines(path):
        if _TOKEN.fullmatch(line) is not None:
            return line
    raise BadConfig(f"{path} holds no plain-text token, which a client needs to send; {FORM}")


def check_token(text: str) -> str:
    """Return a valid token. Raises ValueError, which does not repeat it."""
    if _TOKEN.fullmatch(text) is None:
        raise ValueError(f"not a token; {FORM}")
    return text


def watched_token(path: Path) -> ReloadingFile[str]:
    """A client's token, read again when the file changes. Raises BadConfig."""
    return ReloadingFile((path,), lambda: read_token(path))


PASSWORD_MAX: Final = 512
"""Longest password of basic authentication; a longer line was not meant as one."""


def read_password(path: Path) -> str:
    """The first line of a file, the password of a user of another system. Raises BadConfig, without the content."""
    check_private(path)
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES_MAX)
    except OSError as error:
        raise BadConfig(f"{path}: {(error.strerror or str(error)).lower()}") from error
    if fault := encoding_fault(raw):
        raise BadConfig(f"{path} {fault}")
    line = raw.partition(b"\n")[0].rstrip(b"\r")
    try:
        text = line.decode()
    except UnicodeDecodeError:
        raise BadConfig(f"{path}: its first line is not UTF-8") from None
    if not 0 < len(text) <= PASSWORD_MAX or not text.isprintable():
        raise BadConfig(f"{path}: its first line is no password; one has 1 to {PASSWORD_MAX} printable characters")
    return text


def watched_password(path: Path) -> ReloadingFile[str]:
    """A password, read again when the file changes. Raises BadConfig."""
    return ReloadingFile((path,), lambda: read_password(path))


def watched_digests(path: Path) -> ReloadingFile[tuple[bytes, ...]]:
    """A server's digests, read again when the file changes. Raises BadConfig."""
    return ReloadingFile((path,), lambda: read_digests(path))


def is_among(digest: bytes, digests: tuple[bytes, ...]) -> bool:
    """Whether a token's digest is among `digests`, in constant time."""
    found = False
    for each in digests:
        found |= hmac.compare_digest(digest, each)
    return found


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    check_private(path)
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise BadConfig(f"{path}: {(error.strerror or str(error)).lower()}") from error
    if len(raw) > FILE_BYTES_MAX:
        raise BadConfig(f"{path} is larger than {FILE_BYTES_MAX} bytes, too large for a file of tokens")
    if fault := encoding_fault(raw):
        raise BadConfig(f"{path} {fault}")
    try:
        text = raw.decode("ascii")
    except UnicodeDecodeError:
        raise BadConfig(f"{path} holds something other than tokens; {FORM}") from None
    if not raw:
        raise BadConfig(f"{path} is empty, perhaps still being written; to allow no token, write a comment line (#)")
    if PEM in raw:
        raise BadConfig(f"{path} holds a key or a certificate, not tokens; {FORM}")
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            yield number, stripped
