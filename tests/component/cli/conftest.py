"""Fixtures of the command line's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.fake_admin_listener import FakeAdminListener


@pytest.fixture(autouse=True)
def no_cluster_of_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which cluster the shell of the developer names must not matter."""
    for name in ("ISTHMUS_ADMIN", "ISTHMUS_URL", "ISTHMUS_CONTEXT", "ISTHMUS_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAdminListener]:
    """The listener that ISTHMUS_ADMIN names; a proxy in the environment must not matter."""
    fake = FakeAdminListener()
    monkeypatch.setenv("ISTHMUS_ADMIN", fake.url)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    yield fake
    fake.close()
