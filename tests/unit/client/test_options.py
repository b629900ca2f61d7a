"""Options are checked when a client is made, and errors name them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from isthmus.client import options
from isthmus.client.errors import BadRequest
from isthmus.client.options import Settings
from isthmus.client.steps import Endpoint

URL = "http://127.0.0.1:8098"
TOKEN = "0123456789abcdef"


@pytest.mark.parametrize(
    ("urls", "given"),
    [
        ([], {}),
        ("127.0.0.1", {}),
        ("127.0.0.1:port", {}),
        ("http://127.0.0.1", {}),
        ("http://127.0.0.1:99999", {}),
        ("http://a:1/path", {}),
        ("http://user@a:1", {}),
        ("http://a..b:1", {}),
        ("ftp://a:1", {}),
        (["http://a:1", "https://b:1"], {}),
        (URL, {"timeout": 1}),
        (URL, {"timeout_s": 0}),
        (URL, {"timeout_s": "1"}),
        (URL, {"attempt_timeout_s": -1}),
        (URL, {"connect_timeout_s": float("nan")}),
        (URL, {"attempts": 0}),
        (URL, {"update_attempts": 1.5}),
        (URL, {"connections": 100_000}),
        (URL, {"bucket_type": ""}),
        (URL, {"token": "short"}),
        (URL, {"token": TOKEN + "\r\nX: y"}),
        (URL, {"token": TOKEN, "token_file": "x"}),
        (URL, {"token_file": "/nowhere/token"}),
        (URL, {"ca": "ca.crt"}),
        ("https://a:1", {"ca": "/nowhere/ca.crt"}),
        ("https://a:1", {"cert": "a.crt"}),
        ("https://a:1", {"cert": "/nowhere/a.crt", "key": "/nowhere/a.key"}),
        ("https://a:1", {"ca": "ca.crt", "ssl_context": None}),
    ],
)
def test_wrong_options_are_refused(urls: Any, given: dict[str, Any]) -> None:
    """With the name of the option, or the url."""
    with pytest.raises(BadRequest) as caught:
        Settings(urls, given)  # type: ignore[arg-type]
    named = [*given, "urls", str(urls)]
    assert any(name in caught.value.message for name in named)
    assert TOKEN not in str(caught.value)


def test_urls() -> None:
    """One or several; each node once; IPv6."""
    assert list(Settings(URL, {}).seeds) == [Endpoint("http", "127.0.0.1", 8098)]
    found = Settings(["http://a:1/", "http://a:1", "http://[::1]:2"], {}).seeds
    assert list(found) == [Endpoint("http", "a", 1), Endpoint("http", "::1", 2)]
    assert str(found[1]) == "http://[::1]:2"
    assert list(Settings(["127.0.0.1:8098", URL, "[::1]:2", "east-1:8098"], {}).seeds) == [
        Endpoint("http", "127.0.0.1", 8098),
        Endpoint("http", "::1", 2),
        Endpoint("http", "east-1", 8098),
    ]


@pytest.mark.parametrize(("wrong", "right"), [("timeout", "timeout_s"), ("conections", "connections")])
def test_an_unknown_option_is_reported_with_a_similar_one(wrong: str, right: str) -> None:
    """An option that is like none is reported without."""
    with pytest.raises(BadRequest, match=f"unknown option '{wrong}': did you mean '{right}'"):
        Settings(URL, {wrong: 1})  # type: ignore[misc]
    with pytest.raises(BadRequest, match=r"unknown option 'qwxz'$"):
        Settings(URL, {"qwxz": 1})  # type: ignore[typeddict-unknown-key]


def test_a_token_in_plain_text_stays_with_the_given_nodes() -> None:
    """Other nodes of the routes get requests without a token, or over TLS."""
    assert Settings(URL, {}).discover
    assert not Settings(URL, {"token": TOKEN}).discover
    assert Settings("https://a:1", {"token": TOKEN}).discover


def test_a_token_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    """At most once a second; while it has no token, or is gone, the last one stays."""
    file = tmp_path / "token"
    file.write_text(f"# comment\n\n{TOKEN} # mine\nsecond-token-0123456\n")
    with patch.object(options.time, "monotonic") as clock:
        clock.return_value = 0.0
        current = Settings(URL, {"token_file": file}).authorization
        assert current is not None
        assert current() == b"Bearer " + TOKEN.encode()
        file.write_text("fedcba9876543210")
        assert current() == b"Bearer " + TOKEN.encode()
        clock.return_value = 1.0
        assert current() == b"Bearer fedcba9876543210"
        for at, change in enumerate((lambda: file.write_text(""), lambda: os.remove(file)), 2):
            change()
            clock.return_value = float(at)
            assert current() == b"Bearer fedcba9876543210"
        file.write_text(TOKEN)
        clock.return_value = 9.0
        assert current() == b"Bearer " + TOKEN.encode()


def test_a_token_file_without_token_is_refused(tmp_path: Path) -> None:
    """A digest is not a token that a client could send."""
    file = tmp_path / "token"
    file.write_text("sha256:" + "0" * 64)
    with pytest.raises(BadRequest, match="token_file"):
        Settings(URL, {"token_file": file})
