"""Fixtures: a directory in memory, keys and tokens."""

from __future__ import annotations

from tests.support.memory_directory import memory_directory
from tests.support.tls_files import folder
