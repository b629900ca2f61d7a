"""Alert rules, Grafana dashboard and runbooks name each other, and metrics and labels that the product has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml

from isthmus.node.daemon import METRICS
from tests.project.test_documents_and_samples import anchors_of, unknown_commands

REPOSITORY: Final = Path(__file__).parents[2]
PROMETHEUS: Final = REPOSITORY / "deploy" / "prometheus"
RULES: Final = PROMETHEUS / "isthmus-alerts.yml"
DASHBOARD: Final = REPOSITORY / "deploy" / "grafana" / "isthmus.json"
RUNBOOKS: Final = REPOSITORY / "docs" / "runbooks.md"

TARGET_LABELS: Final = frozenset({"job", "instance", "cluster"})
"""Labels that the scrape adds; `cluster` comes from prometheus.yml."""

OTHERS: Final[dict[str, frozenset[str]]] = {
    "up": frozenset(),
    "ALERTS": frozenset({"alertname", "alertstate", "severity"}),
    "process_cpu_seconds_total": frozenset(),
    "process_resident_memory_bytes": frozenset(),
    "process_open_fds": frozenset(),
}
"""Metrics of Prometheus itself and of prometheus-client, with their labels."""

NO_METRICS: Final = frozenset(
    {
        "abs",
        "and",
        "by",
        "count",
        "group_left",
        "histogram_quantile",
        "increase",
        "label_values",
        "max",
        "max_over_time",
        "min",
        "offset",
        "on",
        "or",
        "predict_linear",
        "rate",
        "sum",
        "time",
        "unless",
    }
)
"""Words of PromQL and of Grafana's variables that the expressions use."""


class Use(NamedTuple):
    """The metrics of an expression with the labels that their matchers use, and the labels of its grouping."""

    metrics: dict[str, set[str]]
    grouping: set[str]


def use_of(expression: str) -> Use:
    """Read a PromQL expression."""
    plain = re.sub(r"\[[^\]]*\]", " ", expression)  # ranges, which may be a variable
    metrics: dict[str, set[str]] = {}
    for name, matchers in re.findall(r"([a-zA-Z_:][\w:]*)\s*\{([^}]*)\}", plain):
        metrics.setdefault(name, set()).update(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
    plain = re.sub(r"\{[^}]*\}|\"[^\"]*\"", " ", plain)
    grouping: set[str] = set()
    for words in re.findall(r"\b(?:by|on|without|ignoring|group_left|group_right)\s*\(([^)]*)\)", plain):
        grouping.update(word.strip() for word in words.split(",") if word.strip())
    plain = re.sub(r"\b(?:by|on|without|ignoring|group_left|group_right)\s*\([^)]*\)", " ", plain)
    variable = re.fullmatch(r"\s*label_values\(\s*(\w+)\s*,\s*(\w+)\s*\)\s*", plain)
    if variable:
        return Use({variable[1]: metrics.get(variable[1], set())}, {variable[2]})
    for name in re.findall(r"(?<![\w$])([a-zA-Z_]\w*)", re.sub(r"\b\d+[smhdw]\b", " ", plain)):
        if name not in NO_METRICS:
            metrics.setdefault(name, set())
    return Use(metrics, grouping)


def labels_of(metric: str) -> frozenset[str] | None:
    """The labels of a metric; None if the product has no such metric."""
    if metric in OTHERS:
        return OTHERS[metric] | TARGET_LABELS
    if metric in METRICS:
        return frozenset(METRICS[metric].labels) | TARGET_LABELS
    base = re.sub(r"_(bucket|count|sum)$", "", metric)
    if base != metric and base.endswith("_duration_seconds") and base in METRICS:
        return frozenset(METRICS[base].labels) | TARGET_LABELS | ({"le"} if metric.endswith("_bucket") else set())
    return None


def faults_of(expression: str, named: set[str] = frozenset()) -> list[str]:  # type: ignore[assignment]
    """Metrics and labels of an expression that the product does not have, and labels in a text about its result that
    the result does not have."""
    use = use_of(expression)
    faults = [] if use.metrics else ["no metric"]
    of_all: set[str] = set()
    for metric, matched in use.metrics.items():
        labels = labels_of(metric)
        if labels is None:
            faults.append(f"no metric {metric}")
            continue
        of_all |= labels
        faults += [f"{metric} has no label {label}" for label in sorted(matched - labels)]
    faults += [f"no label {label} in any of its metrics" for label in sorted(use.grouping - of_all)]
    grouped = re.search(r"\bby\s*\(([^)]*)\)", expression)
    left = {word.strip() for word in grouped[1].split(",")} if grouped else of_all
    return faults + [f"the result has no label {label}" for label in sorted(named - left)]


def rules() -> Iterator[dict[str, Any]]:
    """All alerts."""
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        yield from group["rules"]


def panels() -> Iterator[dict[str, Any]]:
    """The dashboard's panels, rows included."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        yield panel
        yield from panel.get("panels", ())


@pytest.mark.parametrize(
    ("expression", "named", "faults"),
    [
        ("isthmus_storage_full == 1", {"instance"}, []),
        ('rate(isthmus_reads_total{isolation="committed",cluster=~"$cluster"}[$__rate_interval])', {"isolation"}, []),
        ("isthmus_storage_fill == 1", set(), ["no metric isthmus_storage_fill"]),
        ('isthmus_reads_total{queue="q"}', set(), ["isthmus_reads_total has no label queue"]),
        ("sum by (queue) (isthmus_reads_total)", set(), ["no label queue in any of its metrics"]),
        ("sum by (cluster) (isthmus_reads_total)", {"instance"}, ["the result has no label instance"]),
        ("sum by (le) (rate(isthmus_apply_duration_seconds_bucket[5m]))", {"le"}, []),
        ("isthmus_reads_total_bucket", set(), ["no metric isthmus_reads_total_bucket"]),
        ("label_values(up, queue)", set(), ["no label queue in any of its metrics"]),
        ("1 - time()", set(), ["no metric"]),
    ],
)
def test_what_the_product_lacks_is_found(expression: str, named: set[str], faults: list[str]) -> None:
    """The search itself sees unknown metrics, and unknown labels in matchers, in groupings and in texts."""
    assert faults_of(expression, named) == faults


def test_rules_use_metrics_and_labels_that_exist() -> None:
    """Each metric and label in an alert's expression and texts is one of the product or of the scrape."""
    for rule in rules():
        texts = "\n".join(rule["annotations"].values())
        assert not faults_of(rule["expr"], set(re.findall(r"\$labels\.(\w+)", texts))), rule["alert"]


def test_the_dashboard_uses_metrics_and_labels_that_exist() -> None:
    """The same for each panel, its legends, and the dashboard's variables."""
    expressions = [
        (target["expr"], set(re.findall(r"\{\{\s*(\w+)\s*\}\}", target.get("legendFormat", ""))))
        for panel in panels()
        for target in panel.get("targets", ())
    ]
    assert len(expressions) > 30
    document = json.loads(DASHBOARD.read_text())
    expressions += [
        (variable["definition"], set()) for variable in document["templating"]["list"] if variable["type"] == "query"
    ]
    for expression, named in expressions:
        assert not faults_of(expression, named), expression
    variables = {variable["name"] for variable in document["templating"]["list"]}
    used = set(re.findall(r"\$(\w+)", " ".join(expression for expression, _ in expressions)))
    assert used - {"__rate_interval"} <= variables


def test_every_panel_says_what_it_shows() -> None:
    """A panel with queries has a title, a description and a unit, and no two panels have one id or one place."""
    seen: set[object] = set()
    for panel in panels():
        place = panel["gridPos"]
        for key in (("id", panel["id"]), (place["x"], place["y"])):
            assert key not in seen, panel["title"]
            seen.add(key)
        assert place["x"] + place["w"] <= 24
        if panel["type"] != "row":
            assert panel["title"]
            assert panel["description"]
            assert panel["fieldConfig"]["defaults"]["unit"]


def test_every_alert_has_its_runbook_paragraph_and_every_paragraph_its_alert() -> None:
    """The annotation `runbook` of an alert leads to a heading with its name, below which there is text, and each such
    heading is an alert's."""
    text = RUNBOOKS.read_text()
    paragraphs = dict(re.findall(r"^### (Isthmus\w+)\n\n(.+?)\n(?=#)", text, re.MULTILINE | re.DOTALL))
    names = [rule["alert"] for rule in rules()]
    assert sorted(names) == sorted(paragraphs) == sorted(set(names))
    for rule in rules():
        assert rule["annotations"]["runbook"] == f"docs/runbooks.md#{rule['alert'].lower()}"
        assert rule["alert"].lower() in anchors_of(text)


def test_every_alert_says_how_bad_it_is_and_what_to_type() -> None:
    """An alert has a severity that the runbooks explain, a summary, and a description that ends with the next step;
    commands in it exist as in any document."""
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning"), rule["alert"]
        assert rule["annotations"]["summary"]
        description = rule["annotations"]["description"]
        assert "Next: " in description, rule["alert"]
        assert description.endswith("."), rule["alert"]
        assert not unknown_commands(description), rule["alert"]
        assert "$value" in rule["annotations"]["summary"] + description or rule["expr"].endswith(("== 0", "== 1"))


def test_the_sample_configuration_gives_the_labels_that_the_rules_use() -> None:
    """prometheus.yml loads the rules, scrapes as job `isthmus`, and every target has the label `cluster`."""
    sample = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    assert sample["rule_files"] == [RULES.name]
    (job,) = sample["scrape_configs"]
    assert job["job_name"] == "isthmus"
    assert all("cluster" in group["labels"] for group in job["static_configs"])
