"""Prometheus metrics, read from the parts at scrape time: nothing on the hot path touches a metric object.

A part offers a list of samples (name, labels, value); names carry their unit and end in `_total` when they only
rise. Each name has one help line in its floor's table; a sample without one is a bug.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from repl.telemetry import Sample


class PartsCollector(Collector):
    """Collects the samples of all parts into families."""

    def __init__(self, sources: Sequence[Callable[[], Iterable[Sample]]], help_texts: Mapping[str, str]) -> None:
        self._sources = sources
        self._help = help_texts

    def collect(self) -> Iterator[Metric]:
        """One family a name, in order of first appearance."""
        families: dict[str, Metric] = {}
        for source in self._sources:
            for name, labels, value in source():
                family = families.get(name)
                if family is None:
                    text = self._help[name]
                    names = sorted(labels)
                    family = (
                        CounterMetricFamily(name.removesuffix("_total"), text, labels=names)
                        if name.endswith("_total")
                        else GaugeMetricFamily(name, text, labels=names)
                    )
                    families[name] = family
                assert isinstance(family, CounterMetricFamily | GaugeMetricFamily)
                family.add_metric([labels[key] for key in sorted(labels)], value)
        yield from families.values()


class Metrics:
    """The node's registry: our parts, and what prometheus-client knows of the process."""

    def __init__(self, sources: Sequence[Callable[[], Iterable[Sample]]], help_texts: Mapping[str, str]) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        self._registry.register(PartsCollector(sources, help_texts))

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self._registry)
