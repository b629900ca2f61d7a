"""The alert rules of deploy/prometheus, evaluated by promtool on the metrics of clusters with a fault each.

`records/CASE.json` has the scrapes of `tests.component.alerts.record`. The first scrape is repeated for ten minutes
before the others. After the last one the fault continues: gauges keep their value, counters and ages continue at their
last rate.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml

from isthmus.node.services.finding_codes import CODES, UNKNOWN, Code
from tests.component.alerts.record import CASES, RECORDS, RULES, recorded_metrics

BEFORE_S: Final = 600
"""How long the clusters stay as in the first scrape, unless the fault was there from the start."""

LASTS_S: Final = 3_900
"""How long a fault lasts after the last scrape: longer than all but one rule waits."""

PACE_COUNT: Final = 5
"""Scrapes from which the pace of a counter or an age is taken."""


class Expected(NamedTuple):
    """The alerts that fire after `after_s` of the fault, all of them; before it there are none."""

    alerts: frozenset[str]
    after_s: int = LASTS_S


def firing(*names: str, after_s: int = LASTS_S) -> Expected:
    """Alerts by name, without their common prefix."""
    return Expected(frozenset(f"Isthmus{name}" for name in names), after_s)


EXPECTED: Final = {
    "healthy": firing(),
    "node-down": firing("NodeDown"),
    "writes-refused": firing("NodeDown", "ReplicationStuck", "ServerErrors"),
    "stalled-followers": firing("ReplicationStuck"),
    "partition-offline": firing("NodeDown"),
    "unclean-election": firing("NodeDown", "UncleanElection", after_s=1_200),
    "metastore-unreachable": firing("MetastoreUnreachable"),
    "not-registered": firing("NotRegistered"),
    "document-unreadable": firing("MetastoreDocumentUnreadable"),
    "metastore-rolled-back": firing("MetastoreRolledBack"),
    "disk-full": firing("DiskFull", "DiskFills"),
    "disk-nearly-full": firing("DiskFills", after_s=1_800),
    "open-files-nearly-short": firing("OpenFilesNearlyShort"),
    "inodes-nearly-short": firing("InodesNearlyShort"),
    "unforeseen-errors": firing("UnforeseenErrors", after_s=1_800),
    "actors-renewed": firing("ActorsRenewed", after_s=1_800),
    "link-cut": firing("QueueNotFetched"),
    "queue-throttled": firing("SinkLag"),
    "queue-suspended": firing("QueueSuspended"),
    "publishing-suspended": firing("PublishingSuspended"),
    "fullsync-late": firing("FullSyncLate"),
    "fullsync-never": firing("FullSyncNeverProven", after_s=6 * 3_600 + 300),
    "certificate-valid": firing(),
    "certificate-expires": firing("CertificateExpires"),
    "audit-lines-lost": firing("AuditLinesLost", after_s=1_800),
    "certificate-expires-now": firing("CertificateExpires", "CertificateExpiresNow"),
}
"""Case -> the alerts of its fault that Prometheus judges by itself; the records have no findings."""

DASHBOARD: Final = RULES.parents[1] / "grafana" / "isthmus.json"

AGES: Final = ("isthmus_replicate_oldest_seconds",)
"""Metrics besides those with `_age_seconds` that grow with the time."""

Value = float | None


def run_of(value: Value, count: int, step: float = 0.0) -> str:
    """`count` samples in promtool's notation, `step` apart; None: there are none."""
    return f"_x{count}" if value is None else f"{value:g}{step:+g}x{count - 1}" if step else f"{value!r}+0x{count - 1}"


def samples_of(name: str, runs: list[list[Any]], before: int, after: int) -> str:
    """A series in promtool's notation: the first sample `before` times more, and `after` more that continue the
    series."""
    values: list[Value] = [value for value, count in runs for _ in range(count)]
    parts = [run_of(values[0], before)] if before else []
    last: Value = None
    for value, count in runs:
        if value is None and last is not None:  # a failed scrape's marker
            parts += ["stale", *([run_of(None, count - 1)] if count > 1 else [])]
        else:
            parts.append(run_of(value, count))
        last = value
    metric = name.partition("{")[0]
    step = 0.0
    recent = values[-PACE_COUNT:]
    goes_on = metric.endswith(("_total", "_age_seconds")) or metric in AGES
    if goes_on and None not in recent:
        first, end = recent[0], recent[-1]
        assert first is not None
        assert end is not None
        step = max(0.0, (end - first) / (len(recent) - 1))
    parts.append(run_of(None if last is None else last + step, after, step))
    return " ".join(parts)


def promtool_test(record: dict[str, Any], expected: Expected) -> dict[str, Any]:
    """A file of promtool's tests for one record. Each node that answers reports findings, and there are none."""
    before = BEFORE_S if record["fault_at"] else 0
    reporters = {
        name.replace("up{", "isthmus_findings_reporter{"): runs
        for name, runs in record["series"].items()
        if name.startswith("up{")
    }
    series = record["series"] | reporters
    scrapes = max(sum(count for _, count in runs) for runs in series.values())
    end = before + scrapes + expected.after_s

    def alerts(at_s: int, names: frozenset[str]) -> dict[str, Any]:
        return {
            "expr": 'group by (alertname) (ALERTS{alertstate="firing"})',
            "eval_time": f"{at_s}s",
            "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(names)],
        }

    return {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1s",
                "input_series": [
                    {"series": name, "values": samples_of(name, runs, before, expected.after_s + 1)}
                    for name, runs in series.items()
                ],
                "promql_expr_test": [
                    *([alerts(before + record["fault_at"] - 1, frozenset())] if before else []),
                    alerts(end, expected.alerts),
                ],
            }
        ],
    }


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run promtool."""
    return subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=50, check=False)


def outcome(folder: Path, record: dict[str, Any], expected: Expected) -> subprocess.CompletedProcess[str]:
    """The result of promtool's test of a record."""
    file = folder / "test.yml"
    file.write_text(yaml.safe_dump(promtool_test(record, expected), width=1 << 30))
    return promtool("test", "rules", file)


def recorded(case: str) -> dict[str, Any]:
    """A record."""
    found: dict[str, Any] = json.loads((RECORDS / f"{case}.json").read_text())
    return found


def alerts_of_rules() -> Iterator[str]:
    """Names of all alerts."""
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["alert"]


ON_FINDINGS: Final = frozenset(name for entry in CODES.values() for name in entry.alerts)
"""Alerts on what the nodes judge themselves, see the tests of findings below."""


@pytest.mark.promtool
@pytest.mark.parametrize("case", EXPECTED)
def test_a_fault_fires_its_alerts_and_no_other(case: str, tmp_path: Path) -> None:
    """The metrics of a cluster with the fault fire exactly the expected alerts, and none before the fault."""
    done = outcome(tmp_path, recorded(case), EXPECTED[case])
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_fires_on_a_record_or_a_finding() -> None:
    """Each rule has a fault or a finding that it is tested with; each case has a record of the metrics that the rules
    use now."""
    of_records = frozenset[str]().union(*(expected.alerts for expected in EXPECTED.values()))
    assert not of_records & ON_FINDINGS
    assert set(alerts_of_rules()) == of_records | ON_FINDINGS | {NOT_REPORTED}
    assert set(EXPECTED) == set(CASES) == {path.stem for path in RECORDS.glob("*.json")}
    seen = {name.partition("{")[0] for case in CASES for name in recorded(case)["series"]}
    assert seen == recorded_metrics()


def firing_with(*expected: tuple[str, str]) -> list[dict[str, Any]]:
    """The samples of `FIRING` for (alert, severity)."""
    return [
        {"labels": f'{{alertname="{name}",severity="{severity}"}}', "value": 1} for name, severity in sorted(expected)
    ]


FIRING: Final = 'group by (alertname, severity) (ALERTS{alertstate="firing"})'


def finding(code: str, severity: str, values: str, instance: str = "n1", subject: str = "queue q") -> dict[str, str]:
    """The series of a finding, one sample a minute."""
    labels = f'job="isthmus",cluster="east",instance="{instance}"'
    name = f'isthmus_findings{{{labels},code="{code}",severity="{severity}",subject="{subject}"}}'
    return {"series": name, "values": values}


def promtool_on(tmp_path: Path, tests: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    """The result of promtool for the rules; one sample a minute."""
    file = tmp_path / "findings.yml"
    document = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", **test} for test in tests],
    }
    file.write_text(yaml.safe_dump(document, width=1 << 30))
    return promtool("test", "rules", file)


def alerts_of_finding(code: Code, severity: str) -> set[tuple[str, str]]:
    """(alert, severity) that fire on a finding."""
    entry = CODES[code]
    if severity != "unknown":
        return {(name, severity) for name in entry.alerts if name not in ("IsthmusLagUnknown", *UNKNOWN)}
    if code is Code.LAG:
        return {("IsthmusLagUnknown", "warning")}
    return set() if code in (Code.FULLSYNC_UNPROVEN, Code.METASTORE) else {(UNKNOWN[0], "warning")}


@pytest.mark.promtool
@pytest.mark.parametrize("severity", ["critical", "warning", "unknown"])
def test_each_finding_fires_its_alert_with_its_severity(severity: str, tmp_path: Path) -> None:
    """For every code: the alert that the table of codes names, once, however many nodes report it; nothing where
    Prometheus judges by other metrics. What is not known is a warning."""
    lasts = 40
    series = [finding(code, severity, f"1+0x{lasts}", node, f"of {code}") for code in Code for node in ("n1", "n2")]
    expected = [
        {"labels": f'{{alertname="{name}",severity="{shown}",subject="of {code}"}}', "value": 1}
        for code in Code
        for name, shown in alerts_of_finding(code, severity)
    ]
    fired = 'count by (alertname, severity, subject) (ALERTS{alertstate="firing"})'
    tests = [{"expr": fired, "eval_time": f"{lasts}m", "exp_samples": expected}]
    done = promtool_on(tmp_path, [{"input_series": series, "promql_expr_test": tests}])
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.promtool
@pytest.mark.parametrize("code", ["clock", "dead-letters", "disk-free", "fullsync", "gaps", "lag"])
def test_a_warning_that_becomes_critical_is_an_alert_all_the_time(code: str, tmp_path: Path) -> None:
    """From the time at which the warning fires there is no minute without an alert, and at the end it is critical
    alone. After the finding is over, so is the alert, twice the time later at most that it waited before."""
    warned, ends = 30, 90
    series = [
        finding(code, "warning", f"1+0x{warned} stale"),
        finding(code, "critical", f"_x{warned + 1} 1+0x{ends - warned - 1} stale"),
    ]
    (alert,) = CODES[Code(code)].alerts[:1]
    done = promtool_on(
        tmp_path,
        [
            {
                "input_series": series,
                "promql_expr_test": [
                    {
                        "expr": f'count_over_time(group(ALERTS{{alertname="{alert}",alertstate="firing"}})[59m30s:1m])',
                        "eval_time": f"{ends - 10}m",
                        "exp_samples": [{"labels": "{}", "value": 60}],
                    },
                    {"expr": FIRING, "eval_time": f"{ends - 5}m", "exp_samples": firing_with((alert, "critical"))},
                    {"expr": FIRING, "eval_time": f"{ends + 31}m", "exp_samples": []},
                ],
            }
        ],
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.promtool
def test_what_a_node_that_is_down_does_not_tell_is_no_alert_of_its_own(tmp_path: Path) -> None:
    """That it is down is one; of a node that lives and is silent it is not known."""
    down = finding("node-down", "warning", "1+0x40", subject="node n3")
    silent = finding("node-silent", "unknown", "1+0x40", subject="node n3")
    expected = [firing_with(), firing_with((UNKNOWN[0], "warning"))]
    tests = [
        {
            "input_series": series,
            "promql_expr_test": [{"expr": FIRING, "eval_time": "40m", "exp_samples": samples}],
        }
        for series, samples in zip([[down, silent], [silent]], expected, strict=True)
    ]
    done = promtool_on(tmp_path, tests)
    assert done.returncode == 0, done.stdout + done.stderr


NOT_REPORTED: Final = "IsthmusFindingsNotReported"


def target(metric: str, node: str, values: str, cluster: str = "east") -> dict[str, str]:
    """A series of a scraped node that has no labels of its own."""
    return {"series": f'{metric}{{job="isthmus",cluster="{cluster}",instance="{node}"}}', "values": values}


@pytest.mark.promtool
@pytest.mark.parametrize(
    ("reporters", "up", "fires"),
    [
        ({"n3": "0+0x40"}, {"n1": "0+0x40", "n2": "0+0x40", "n3": "1+0x40"}, True),
        ({"n3": "0+0x40"}, {"n3": "1+0x40"}, True),
        ({}, {"n3": "1+0x40"}, True),
        ({"n2": "1+0x40", "n3": "0+0x40"}, {"n1": "0+0x40", "n2": "1+0x40", "n3": "1+0x40"}, False),
        ({"n3": "0+0x5 1+0x34"}, {"n1": "0+0x40", "n2": "0+0x40", "n3": "1+0x40"}, False),
        ({}, {"n1": "0+0x40", "n2": "0+0x40"}, False),
    ],
    ids=["both do not answer", "both are not configured", "earlier version", "one answers", "next one", "all are down"],
)
def test_a_cluster_whose_reporters_are_not_scraped_is_an_alert(
    tmp_path: Path, reporters: dict[str, str], up: dict[str, str], fires: bool
) -> None:
    """Of that cluster alone, and once for it, while other nodes of it answer; where none does, it is told of each node
    that it is down."""
    series = [target("up", node, values) for node, values in up.items()]
    series += [target("isthmus_findings_reporter", node, values) for node, values in reporters.items()]
    series += [target(metric, "w1", "1+0x40", "west") for metric in ("up", "isthmus_findings_reporter")]
    labels = f'{{alertname="{NOT_REPORTED}",severity="warning",cluster="east"}}'
    samples = [{"labels": labels, "value": 1}] if fires else []
    expr = f'count by (alertname, severity, cluster) (ALERTS{{alertstate="firing",alertname="{NOT_REPORTED}"}})'
    tests = [
        {"expr": expr, "eval_time": "9m", "exp_samples": []},
        {"expr": expr, "eval_time": "40m", "exp_samples": samples},
    ]
    done = promtool_on(tmp_path, [{"input_series": series, "promql_expr_test": tests}])
    assert done.returncode == 0, done.stdout + done.stderr


HOURS: Final = 60
"""Samples of an hour, one a minute."""


def spread_checks(
    tmp_path: Path, ages: dict[str, str | None], hours: int, expected: set[str]
) -> subprocess.CompletedProcess[str]:
    """The result of promtool for a cluster whose nodes check once a day; `ages`: node -> the age of its proof in
    promtool's notation, None: it has proven nothing. `expected`: the alerts about full-sync at the end."""
    count = hours * HOURS
    series = []
    for node, age in ages.items():
        labels = f'job="isthmus",cluster="east",instance="{node}",peer="west"'
        series.append({"series": f"isthmus_fullsync_checks_per_day{{{labels}}}", "values": f"1+0x{count}"})
        if age is not None:
            name = f'isthmus_fullsync_proven_age_seconds{{{labels},bucket_type="default"}}'
            series.append({"series": name, "values": f"{age}x{count}"})
    test = {
        "interval": "1m",
        "input_series": series,
        "promql_expr_test": [
            {
                "expr": 'group by (alertname) (ALERTS{alertstate="firing",alertname=~"IsthmusFullSync.*"})',
                "eval_time": f"{count}m",
                "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(expected)],
            }
        ],
    }
    file = tmp_path / "spread.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "5m", "tests": [test]}))
    return promtool("test", "rules", file)


@pytest.mark.promtool
@pytest.mark.parametrize(
    ("ages", "expected"),
    [
        ({"n1": "60+0", "n2": None, "n3": None}, set()),
        ({"n1": "60+0", "n2": "500000+60"}, set()),
        ({"n1": "500000+60", "n2": "400000+60"}, {"IsthmusFullSyncLate"}),
        ({"n1": "500000+60", "n2": None}, {"IsthmusFullSyncLate"}),
        ({"n1": None, "n2": None}, {"IsthmusFullSyncNeverProven"}),
    ],
    ids=["one node proves for all", "a late node among others", "all late", "late, and a new node", "never"],
)
def test_checks_count_for_the_cluster_whichever_node_made_them(
    tmp_path: Path, ages: dict[str, str | None], expected: set[str]
) -> None:
    """A proof of one node silences the alerts for all; without one, each fires once for the cluster."""
    done = spread_checks(tmp_path, ages, 8, expected)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.promtool
def test_an_alert_that_does_not_fire_is_noticed(tmp_path: Path) -> None:
    """Wrong expectations fail: with another expectation the same record does not pass."""
    record = recorded("node-down")
    for expected in (firing(), firing("NodeDown", "DiskFull")):
        done = outcome(tmp_path, record, expected)
        assert done.returncode == 1, done.stdout
        assert "IsthmusNodeDown" in done.stdout + done.stderr


@pytest.mark.promtool
def test_rules_and_sample_configuration_are_valid() -> None:
    """Promtool accepts the rules and the sample that loads them."""
    done = promtool("check", "config", RULES.parent / "prometheus.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"SUCCESS: {len(list(alerts_of_rules()))} rules found" in done.stdout


@pytest.mark.promtool
def test_the_expressions_of_the_dashboard_are_valid(tmp_path: Path) -> None:
    """Promtool parses each query of the Grafana dashboard, its variables replaced."""
    queries = [
        target["expr"].replace("$__rate_interval", "5m").replace("$", "")
        for panel in json.loads(DASHBOARD.read_text())["panels"]
        for target in panel.get("targets", ())
    ]
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries)]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = promtool("check", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"SUCCESS: {len(queries)} rules found" in done.stdout
