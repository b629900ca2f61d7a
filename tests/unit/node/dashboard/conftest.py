"""Fixtures: the folder of tokens."""

from __future__ import annotations

from tests.support.tls_files import folder
