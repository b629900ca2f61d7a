"""Alert rules, Grafana dashboard and runbooks name each other, and metrics and labels that the product has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml

from isthmus.config.settings import TlsSettings
from isthmus.config.units import parse_duration
from isthmus.node.daemon import METRICS
from isthmus.node.security.credentials import URGENT_S
from isthmus.node.services.finding_codes import CODES, OTHER, UNKNOWN, Code
from isthmus.node.services.findings import LAG, LETTERS, findings_document
from isthmus.repl.replog.log import RESERVE_BYTES
from isthmus.repl.shortage import INODES_WARNING, NEARLY_PERCENT
from tests.project.test_documents_and_samples import anchors_of, unknown_commands
from tests.support.cluster_answers import (
    NOW_MS,
    cluster_answer,
    fullsync_answer,
    health_answer,
    lag_answer,
    node_row,
    sinks_answer,
)

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
        taken = "by (job, cluster, severity," in rule["expr"] or "by (job, cluster, code, severity," in rule["expr"]
        severities = [None] if taken else ["critical", "warning"]  # of the finding, or its own
        assert rule.get("labels", {}).get("severity") in severities, rule["alert"]
        assert rule["annotations"]["summary"]
        description = rule["annotations"]["description"]
        assert "Next: " in description, rule["alert"]
        assert description.endswith("."), rule["alert"]
        assert not unknown_commands(description), rule["alert"]
        by_itself = rule["expr"].endswith(("== 0", "== 1")) or "isthmus_findings" in rule["expr"]
        assert by_itself or "$value" in rule["annotations"]["summary"] + description


def built_on(expression: str) -> set[Code]:
    """Codes of findings on which an alert is built; the one about what is not known names those that it leaves out."""
    if excluded := re.search(r'isthmus_findings\{severity="unknown",code!~"([^"]+)"', expression):
        return set(Code) - {Code(code) for code in excluded[1].split("|")}
    return {
        Code(code)
        for codes in re.findall(r'isthmus_findings\{code=~?"([^"]+)",severity', expression)
        for code in codes.split("|")
    }


def test_every_finding_has_its_alert_and_its_runbook_or_a_reason_why_not() -> None:
    """Each code names alerts that exist, so that each has a runbook (see above). An alert is built on the codes that
    name it, and on no other; where it is not, the table says why. Its words and its next step are those of the
    finding."""
    by_name = {rule["alert"]: rule for rule in rules()}
    for code, entry in CODES.items():
        assert entry.alerts + entry.beside, code
        assert bool(entry.beside) == bool(entry.because), code
        for name in entry.beside:
            assert "isthmus_findings" not in by_name[name]["expr"], name
        for name in entry.alerts:
            assert code in built_on(by_name[name]["expr"]), (code, name)
            texts = by_name[name]["annotations"]
            if name not in OTHER + UNKNOWN:
                assert entry.words, code
                assert entry.words in texts["summary"], code
                assert texts["description"].endswith(f"Next: {entry.remedy}."), code
    for name, rule in by_name.items():
        for code in built_on(rule["expr"]) if name not in UNKNOWN else ():
            assert name in CODES[code].alerts


def health_of(**changed: Any) -> dict[str, Any]:
    """The health of a cluster whose first node says this, too."""
    answer = health_answer("east")
    node = next(iter(answer["nodes"]))
    answer["nodes"][node] = {**answer["nodes"][node], **changed}
    return {"health": answer}


def cluster_of(**changed: Any) -> dict[str, Any]:
    """The state of a cluster, changed so."""
    return {"cluster": {**cluster_answer("east"), **changed}}


def lag_of(seconds: float | None, ledger_off: int = 0) -> dict[str, Any]:
    """A lag of so many seconds, of a queue whose ledger is off by so much."""
    answer = lag_answer("east")
    answer["lag"][0] |= {"seconds": seconds, "ledger_off": ledger_off}
    return {"lag": answer}


def sinks_of(letters: int = 0, **changed: Any) -> dict[str, Any]:
    """Sinks with so many dead letters, and links that are so."""
    answer = sinks_answer("east", **changed)
    answer["nodes"][0]["sink"]["dead_letters"]["kept"] = letters
    return {"sinks": answer}


def proven(hours: int) -> dict[str, Any]:
    """The newest proof is so old."""
    answer = fullsync_answer("east")
    for peer in (peer for one in answer["nodes"].values() for peer in one["peers"]):
        began_ms = NOW_MS - hours * 3_600_000
        peer["proven_ms"] = {"default": began_ms}
        peer["newest"]["default"]["began_ms"] = began_ms
    return {"fullsync": answer}


GAP: Final = {"queue": "to-west", "from_ms": NOW_MS - 60_000, "upto_ms": NOW_MS}
AHEAD: Final = {"nodes": [{"node": "east-2", "offset_ms": 30_000.0, "bound_ms": 1.0}], "peers": []}
UNREADABLE: Final = "nothing is decided by what cannot be read: /p/0: not JSON"
REFUSES: Final = "node east-1, partition 3: out-of-storage: writes are refused, no inode is free"
EXPIRES: Final = "tls.certificate of node east-1 expires in 9 days (/etc/isthmus/n1.crt)"

EXAMPLES: Final[list[tuple[Code, str, dict[str, Any]]]] = [
    (Code.ACTOR_RENEWED, "critical", health_of(renewed=[{"cluster": "west", "partition": 3}])),
    (Code.BUCKET_TYPE_LACKING, "warning", sinks_of(held_types=["carts"])),
    (Code.CERTIFICATE, "warning", health_of(problems=[EXPIRES])),
    (Code.CERTIFICATE, "critical", health_of(problems=[EXPIRES], urgent=[EXPIRES])),
    (Code.CLOCK, "warning", health_of(clocks=AHEAD)),
    (Code.CREDENTIALS, "warning", health_of(problems=["a changed file of node east-1 is not in force: no key"])),
    (Code.DEAD_LETTERS, "warning", sinks_of(letters=3)),
    (Code.DEAD_LETTERS, "critical", sinks_of(letters=101)),
    (Code.DEFECT, "warning", health_of(defects=["a defect of this program ended push.bug once"])),
    (Code.DISK_FREE, "critical", health_of(free_bytes=2)),
    (Code.DISK_FREE, "warning", health_of(free_bytes=9)),
    (Code.DOCUMENT_UNREADABLE, "warning", cluster_of(unreadable=[UNREADABLE], problems=[UNREADABLE])),
    (Code.FULLSYNC_UNPROVEN, "warning", proven(30)),
    (Code.GAPS, "warning", {"gaps": {"gaps": [GAP], "unknown": [], "unknown_partitions": {}, "at_ms": NOW_MS}}),
    (Code.LAG, "warning", lag_of(60.0)),
    (Code.LAG, "critical", lag_of(600.0)),
    (Code.LAG, "unknown", lag_of(None)),
    (Code.LEDGER, "critical", lag_of(0.0, ledger_off=3)),
    (Code.LINKS_FAIL, "warning", sinks_of(state="failing", reason="timed out")),
    (Code.MIN_ISR, "critical", cluster_of(below_min_isr=[1])),
    (Code.NODE_DOWN, "warning", cluster_of(nodes=[node_row("east", 1), node_row("east", 2, "gone")])),
    (Code.OFFLINE, "critical", cluster_of(partitions={"total": 12, "online": 11, "offline": 1})),
    (Code.OUT_OF_SYNC, "warning", cluster_of(under_replicated=[1])),
    (Code.SHORT, "warning", health_of(short=["55 of 64 descriptors are taken"])),
    (Code.WRITES_REFUSED, "critical", cluster_of(problems=[REFUSES], writes_refused={"east-1": [REFUSES]})),
]
"""(code, severity, answers of a cluster with such a finding)."""


@pytest.mark.parametrize(
    ("code", "severity", "answers"), EXAMPLES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_finding_and_its_alert_have_the_same_words_and_severity(
    code: Code, severity: str, answers: dict[str, Any]
) -> None:
    """The sentence has the words that the alert's summary has. An alert that is not built on findings, so that it has a
    severity of its own, has that of the finding."""
    found = findings_document(answers if "cluster" in answers else {"cluster": cluster_answer("east"), **answers}, {})
    (finding,) = [row for row in found["findings"] if row["code"] == code]
    assert finding["severity"] == severity
    assert CODES[code].words in finding["sentence"]
    if not CODES[code].alerts:
        own = {rule["labels"]["severity"] for rule in rules() if rule["alert"] in CODES[code].beside}
        assert severity in own


def test_every_code_with_words_or_a_severity_of_its_own_has_an_example() -> None:
    """Those without one have the alert of all others, or of what is not known; and what is said of the metastore is not
    known, while its alerts are about how long that lasts."""
    without = {code for code, entry in CODES.items() if entry.alerts in (OTHER, UNKNOWN)} | {Code.METASTORE}
    assert {code for code, _, _ in EXAMPLES} | without == set(Code)


def test_limits_in_rules_are_those_of_the_node() -> None:
    """Where Prometheus compares a number itself, it is the one with which a node warns by default."""
    by_name = {rule["alert"]: rule["expr"] for rule in rules()}
    limits = {
        "IsthmusCertificateExpires": f"< {TlsSettings().expiry_warning_ms // 86_400_000} * 86400",
        "IsthmusCertificateExpiresNow": f"< {URGENT_S // 86_400} * 86400",
        "IsthmusOpenFilesNearlyShort": f">= {NEARLY_PERCENT / 100} * isthmus_open_files_limit",
        "IsthmusInodesNearlyShort": f"< {INODES_WARNING}",
        "IsthmusDiskFills": f"< {RESERVE_BYTES}",
    }
    for name, limit in limits.items():
        assert by_name[name].endswith(limit), name


def test_the_colours_of_the_dashboard_change_at_the_limits_of_the_findings() -> None:
    """A figure of the Grafana dashboard is orange where `isthmus status` warns, and red where that is critical."""
    colours = {
        panel["title"]: {
            step["color"]: step["value"] for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        }
        for panel in panels()
        if panel["type"] == "stat"
    }
    late, critical = (parse_duration(limit) // 1000 for limit in LAG)
    assert colours["Lag"] == {"green": None, "orange": late, "red": critical}
    assert colours["Dead letters"] == {"green": None, "orange": LETTERS[0] + 1, "red": LETTERS[1] + 1}


def test_the_sample_configuration_gives_the_labels_that_the_rules_use() -> None:
    """prometheus.yml loads the rules, scrapes as job `isthmus`, and every target has the label `cluster`."""
    sample = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    assert sample["rule_files"] == [RULES.name]
    (job,) = sample["scrape_configs"]
    assert job["job_name"] == "isthmus"
    assert all("cluster" in group["labels"] for group in job["static_configs"])
