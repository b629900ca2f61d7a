"""Fixtures of the command line's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.fake_admin_listener import FakeAdminListener


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAdminListener]:
    """The listener that ISTHMUS_ADMIN names; a proxy in the environment must not matter."""
    fake = FakeAdminListener()
    monkeypatch.setenv("ISTHMUS_ADMIN", fake.url)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    yield fake
    fake.close()
