"""Prometheus metrics, read from the components at scrape time: the hot path touches no metric object.

A component offers samples (name, labels, value); a name carries its unit and its type (`kind_of`). Each family is
defined once, in the table HELP of its package; a sample without a definition is a bug. docs/metrics.md is generated
from these tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from isthmus.repl.telemetry import Family, Sample
from isthmus.repl.unforeseen import unforeseen

_HISTOGRAM_PARTS: Final = ("_bucket", "_count", "_sum")


def kind_of(name: str) -> tuple[str, str]:
    """(family, type) of a sample's name: "counter" when it ends in `_total`, "histogram" when it is a part of a
    `_duration_seconds`, "gauge" otherwise."""
    for part in _HISTOGRAM_PARTS:
        if name.endswith(f"_duration_seconds{part}"):
            return name.removesuffix(part), "histogram"
    return name, "counter" if name.endswith("_total") else "gauge"


class PartsCollector(Collector):
    """Collects the samples of all components into families."""

    def __init__(self, sources: Sequence[Callable[[], Iterable[Sample]]], families: Mapping[str, Family]) -> None:
        self._sources = sources
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """One family a name, in order of first appearance. A source that fails costs its own samples."""
        found: dict[str, Metric] = {}
        for source in self._sources:
            try:
                self._add(source(), found)
            except Exception as error:
                unforeseen.exception(
                    "metrics.source_failed", error, source=getattr(source, "__qualname__", repr(source))
                )
        yield from found.values()

    def _add(self, samples: Iterable[Sample], found: dict[str, Metric]) -> None:
        for name, labels, value in samples:
            of, kind = kind_of(name)
            family = found.get(of)
            if family is None:
                family = found[of] = Metric(of.removesuffix("_total"), self._families[of].meaning, kind)
            family.add_sample(name, dict(labels), value)


class Metrics:
    """The node's registry: the components' samples, and prometheus-client's metrics of the process."""

    def __init__(self, sources: Sequence[Callable[[], Iterable[Sample]]], families: Mapping[str, Family]) -> None:
        self.families = families
        """Every metric that the components may offer, by name."""
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        self._registry.register(PartsCollector(sources, families))

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self._registry)
