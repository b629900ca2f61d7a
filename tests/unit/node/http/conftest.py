"""Fixtures: a client API over a cluster in memory; keys, certificates and tokens."""

from __future__ import annotations

from tests.support.memory_client_api import ask_face, eventually_fixture, logged, room, room_with, serve, server
from tests.support.tls_files import folder
