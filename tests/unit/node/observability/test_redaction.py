"""Secrets in texts."""

from __future__ import annotations

import pytest

from isthmus.node.observability.redaction import MASK, Redactor


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("Authorization: Bearer abcdefgh12345678 x", f"Authorization: {MASK} {MASK} x"),
        ("bearer  AbC.def-ghi_jkl~mno+pqr/stu=", f"bearer {MASK}"),
        ("token=abcdefgh, next", f"token={MASK}, next"),
        ('{"sink_token": "ab\\"cd", "x": 1}', f'{{"sink_token": "{MASK}", "x": 1}}'),
        ("password: hunter2", f"password: {MASK}"),
        ("https://ann:s3cret@host:1/x", f"https://{MASK}@host:1/x"),
        ("-----BEGIN PRIVATE KEY-----\nMIIB\n-----END PRIVATE KEY-----\nrest", f"{MASK}\nrest"),
        ("-----BEGIN EC PRIVATE KEY-----\nMIIB", MASK),
        ("PLANTED-secret here, PLANTED-secret", f"{MASK} here, {MASK}"),
    ],
)
def test_secrets_are_removed(text: str, clean: str) -> None:
    """Known ones wherever they stand, others by their form."""
    assert Redactor(["PLANTED-secret", "short"]).clean(text).replace(f"{MASK} {MASK}", f"{MASK} {MASK}") == clean


@pytest.mark.parametrize(
    "text",
    [
        "tokens.read: /etc/isthmus/read.tokens",
        'token_file = "/etc/isthmus/east.token"',
        '"token_file": null',
        "a short word stays, as does a key of a bucket",
        "http://west-1:8098",
        "the token is of no known role",
        "sha256:0123abcd",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    """Paths of files, empty values and plain words are needed to understand a case."""
    assert Redactor(["short"]).clean(text) == text
