"""Routes that a node must not have sent."""

from __future__ import annotations

import json

import pytest

from isthmus.client.errors import ServerFault
from isthmus.client.routes import HASH, VERSION, parse_routes


@pytest.mark.parametrize("version", [float("inf"), float("nan"), "x", None])
def test_a_version_that_is_no_number_is_a_fault_of_the_server(version: object) -> None:
    """Python's JSON parser accepts infinity, which is not a version."""
    document = {"v": VERSION, "hash": HASH, "version": version, "cluster_uuid": "u", "nodes": {}, "bucket_types": {}}
    with pytest.raises(ServerFault):
        parse_routes(json.dumps(document).encode())
