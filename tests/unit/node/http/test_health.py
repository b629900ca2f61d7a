"""The endpoints for probes and Prometheus."""

from __future__ import annotations


def test_probes_answer_for_the_process_and_for_its_partitions(client_api):
    """/ping and /livez always answer; /readyz gives the reason if not every partition is served."""
    assert client_api.call("GET", "/ping").body == b"OK"
    assert client_api.call("HEAD", "/livez").status == 200
    assert client_api.call("GET", "/readyz").status == 200
    client_api.status.readiness = (False, "3 partitions are not served")
    answer = client_api.call("GET", "/readyz")
    assert (answer.status, answer.reason, answer.headers["retry-after"]) == (503, "not-ready", "1")
    assert answer.body == b"3 partitions are not served\n"
    assert client_api.call("GET", "/livez").status == 200


def test_metrics_are_the_exposition_text(client_api):
    """/metrics serves what the node renders, as Prometheus' text format."""
    answer = client_api.call("GET", "/metrics")
    assert answer.body == b"# no metrics\n"
    assert answer.headers["content-type"].startswith("text/plain; version=")
