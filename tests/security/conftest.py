"""One authority for all tests of the locks."""

from __future__ import annotations

import pytest

from tests.security.folder import Folder, filled


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """Keys and tokens, made once; tests that change them make their own."""
    return filled(tmp_path_factory.mktemp("security"))
