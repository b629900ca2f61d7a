"""Fixtures: a client API over a cluster in memory, and a real listener on loopback."""

from __future__ import annotations

from tests.support.memory_client_api import (
    client_api,
    client_api_with,
    eventually_fixture,
    logged,
    send_request,
    serve,
    server,
)
