"""Durations of requests: buckets, bounded labels, and what Prometheus reads of them."""

from __future__ import annotations

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from isthmus.node.http.durations import BOUNDS_S, HELP, RequestDurations
from isthmus.node.observability.metrics import Metrics

NAME = "isthmus_http_request_duration_seconds"


def test_a_duration_is_in_every_bucket_that_holds_it() -> None:
    """A bucket has the durations up to its bound, the bound included; the last one has all."""
    durations = RequestDurations()
    for duration_s in (0.0, 0.0005, 0.0006, 0.01, 9.0, 11.0):
        durations.series("object", "GET", 200).add(duration_s)
    samples = {(name, labels.get("le")): value for name, labels, value in durations.samples("http")}
    assert samples[f"{NAME}_bucket", "0.0005"] == 2
    assert samples[f"{NAME}_bucket", "0.001"] == 3
    assert samples[f"{NAME}_bucket", "0.005"] == 3
    assert samples[f"{NAME}_bucket", "0.01"] == 4
    assert samples[f"{NAME}_bucket", "2.5"] == 4
    assert samples[f"{NAME}_bucket", "10"] == 5
    assert samples[f"{NAME}_bucket", "+Inf"] == samples[f"{NAME}_count", None] == 6
    assert abs(samples[f"{NAME}_sum", None] - 20.0111) < 1e-9
    assert list(BOUNDS_S) == sorted(BOUNDS_S)


def test_labels_are_bounded() -> None:
    """Statuses are counted by class, and methods without a route together, so clients cannot add labels."""
    durations = RequestDurations()
    assert durations.series("object", "PUT", 200) is durations.series("object", "PUT", 204)
    assert durations.series("object", "PUT", 200) is not durations.series("object", "PUT", 400)
    assert durations.series("other", "PROPFIND", 405) is durations.series("other", "BREW", 405)


def test_prometheus_reads_a_histogram_with_its_labels() -> None:
    """The exposition has a histogram; a series without requests is not in it."""
    durations = RequestDurations()
    durations.series("object", "GET", 200)
    durations.series("/buckets/{bucket}/keys", "POST", 201).add(0.002)
    text = Metrics([lambda: durations.samples("http")], HELP).render().decode()
    (family,) = [family for family in text_string_to_metric_families(text) if family.name == NAME]
    assert family.type == "histogram"
    labels: list[dict[str, Any]] = [sample.labels for sample in family.samples if sample.name == f"{NAME}_count"]
    assert labels == [{"listener": "http", "route": "/buckets/{bucket}/keys", "method": "POST", "status_class": "2xx"}]
