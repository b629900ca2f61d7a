"""Fixtures: keys, certificates and tokens."""

from __future__ import annotations

from tests.support.tls_files import folder
