"""Requests that schemathesis generates from the description, valid and not; the answers must fit it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.samples import WHOLE
from tests.support.threaded_node import running_node

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"

SETTINGS = """\
[checks.not_a_server_error]
# A write that may take 5 ms is answered with 504 on a busy machine, and with 503 while leadership moves.
expected-statuses = ["2xx", "3xx", "4xx", 503, 504]

# A stream of JSON documents is no JSON document, and OpenAPI has no word for it. A listing whose time is over after its
# first part is cut, as it must be, which a request of 1 ms may meet.
[[operations]]
include-path-regex = "/keys$"
parameters = { keys = "true", timeout = "30000" }

[[operations]]
include-path-regex = "/buckets$|^/riak$"
parameters = { buckets = "true", timeout = "30000" }

[[operations]]
include-path = "/riak/{bucket}"
parameters = { timeout = "30000" }

[[operations]]
include-path = "/queuename/{queue}"
phases.coverage.unexpected-methods = ["DELETE", "PUT", "TRACE"] # its GET is Riak's, and 501
"""

ELSEWHERE = "/fetch$|/object$|/counters$|/trees/|/rows|/metrics$|/batch/push$|/admin/live$"
"""Requests in msgpack alone, metrics, and an endless stream: they have tests of their own."""


def run(directory: Path, listener: str, *arguments: str, timeout_s: int) -> None:
    """Run schemathesis on a listener of a new node. Raises AssertionError with its findings."""
    (directory / "schemathesis.toml").write_text(SETTINGS)
    with running_node(directory) as node:
        base = f"http://127.0.0.1:{getattr(node, listener)}"
        made = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "run", base + "/openapi.json", "--url", base),
                *("--checks", CHECKS, "--seed", "7", "--exclude-path-regex", ELSEWHERE, "--no-color"),
                *("--request-timeout", "30", "--generation-database", "none", "--suppress-health-check", "all"),
                *arguments,
            ],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            cwd=directory,
        )
    assert made.returncode == 0, made.stdout[-6000:] + made.stderr[-2000:]


@pytest.mark.timeout(200)
@pytest.mark.parametrize("listener", ["http", "admin"])
def test_a_few_answers_of_each_operation_fit_the_description(tmp_path: Path, listener: str) -> None:
    """One or two requests of each operation get answers that fit the description."""
    run(tmp_path, listener, "--max-examples", "2" if WHOLE else "1", "--phases", "examples,fuzzing", timeout_s=180)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("listener", ["http", "admin"])
def test_every_answer_fits_the_description(tmp_path: Path, listener: str) -> None:
    """No request generated from the description, valid or invalid, is answered with a fault, with a status or a media
    type that is not in it, or with JSON of another schema."""
    run(tmp_path, listener, "--max-examples", "10", "--phases", "examples,coverage,fuzzing", timeout_s=850)
