"""Secrets in texts."""

from __future__ import annotations

import pytest

from isthmus.node.observability.redaction import MASK, Redactor


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("Authorization: Bearer abcdefgh12345678 x", f"Authorization: {MASK}"),
        ('Authorization: Digest username="ann", response="0123"\nnext', f"Authorization: {MASK}\nnext"),
        ("Cookie: isthmus=abc; other=def", f"Cookie: {MASK}"),
        ("Set-Cookie: isthmus=abc; Path=/", f"Set-Cookie: {MASK}"),
        ("[(b'authorization', b'Digest abc')]", f"[(b'authorization', b'{MASK}')]"),
        ('["authorization", "Digest abc"]', f'["authorization", "{MASK}"]'),
        ('sent {\\"token\\": \\"ab\\\\\\"cd\\", \\"x\\": 1}', f'sent {{\\"token\\": \\"{MASK}\\", \\"x\\": 1}}'),
        ('{"body": "{\\"token\\": \\"abc\\"}"}', f'{{"body": "{{\\"token\\": \\"{MASK}\\"}}"}}'),
        ('{"tokens": ["abc", "def"], "x": 1}', f'{{"tokens": ["{MASK}", "{MASK}"], "x": 1}}'),
        ('read {"tokens": ["abc", "def"], "x": 1}', f'read {{"tokens": {MASK}, "x": 1}}'),
        ('{"password": 12345678}', f'{{"password": "{MASK}"}}'),
        ("isthmus status --token abc --admin x", f"isthmus status --token {MASK} --admin x"),
        ("run ['isthmus', '--token', 'abc']", f"run ['isthmus', '--token', '{MASK}']"),
        ("--sink-token=abc", f"--sink-token={MASK}"),
        ("password=/abc+def=", f"password={MASK}"),
        ('{"token": "/abc"}', f'{{"token": "{MASK}"}}'),
        ("token_file = abcdef0123", f"token_file = {MASK}"),
        ('"token": "abc', f'"token": "{MASK}'),
        ("secret_key: abc,def", f"secret_key: {MASK}"),
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
    """Known secrets are removed anywhere, others by their form."""
    assert Redactor(["PLANTED-secret", "short"]).clean(text) == clean


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
        "isthmus status --token-file /etc/isthmus/east.token",
        '{"tokens": 3, "secrets": [], "password": null, "token_file": "/etc/isthmus/east.token"}',
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    """Paths of files, empty values and plain words are needed to analyse a problem."""
    assert Redactor(["short"]).clean(text) == text
