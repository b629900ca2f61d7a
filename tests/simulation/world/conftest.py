"""Fixtures: a directory in memory."""

from __future__ import annotations

from tests.support.memory_directory import memory_directory
