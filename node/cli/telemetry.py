"""`isthmus cluster telemetry`: replication in numbers, of the cluster, of each bucket type and of each node.

Shows what a node gathered from all (`GET /admin/telemetry`); `-o json` prints its answer unchanged. Rates and times are
of the last 30 to 60 s, totals since each node began.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import click

from node.cli.output import cell, echo_facts, echo_json, echo_table, milliseconds, output_option
from node.cli.remote import AdminClient, admin_option

PARTS: Final = (("leader", "leaders"), ("isr", "ISR followers"), ("osr", "OSR"))


@click.command("telemetry")
@admin_option
@output_option
def telemetry(admin: AdminClient, output: str) -> None:
    """Replogs, replication, apply and ISR in numbers: cluster, bucket types, nodes.

    Logs by role, times and rates by kind of entry, failures, and the worst ISR.
    """
    answer = admin.get("/admin/telemetry")
    if output == "json":
        echo_json(answer)
        return
    levels = list(_levels(answer))
    unknown = answer.get("nodes_unknown")
    if unknown:
        echo_facts([("not counted, unknown", unknown)])
        click.echo()
    columns: tuple[str, ...]
    columns = ("of", "part", "replicas", "entries avg", "entries max", "unapplied avg", "unapplied max")
    echo_table(columns, (row for name, level in levels for row in _replogs(name, level)))
    click.echo()
    columns = (
        "of", "entry", "replicated", "/s", "avg", "max", "failures", "failures/s",
        "applied", "applied/s", "apply avg", "apply max",
    )  # fmt: skip
    echo_table(columns, (row for name, level in levels for row in _kinds(name, level)))
    click.echo()
    echo_table(("of", "worst ISR", "min-ISR", "replicas", "partition"), (_isr(name, level) for name, level in levels))


def _levels(answer: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "cluster", _mapping(answer.get("cluster"))
    for key, what in (("bucket_types", "bucket_type"), ("nodes", "node")):
        for each in answer.get(key) or []:
            yield f"{what.replace('_', ' ')} {cell(each.get(what))}", _mapping(each)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _replogs(name: str, level: dict[str, Any]) -> Iterator[list[Any]]:
    replogs = level.get("replogs")
    for part, shown in PARTS:
        sizes = _mapping(_mapping(replogs).get(part))
        keys = ("replicas", "entries_average", "entries_max", "unapplied_average", "unapplied_max")
        if replogs is None or sizes.get("replicas"):
            yield [name, shown, *(sizes.get(key) for key in keys)]


def _kinds(name: str, level: dict[str, Any]) -> Iterator[list[Any]]:
    replicate, apply = level.get("replicate"), level.get("apply")
    failures, rates = _mapping(level.get("failures")), _mapping(level.get("failures_per_s"))
    if replicate is None or apply is None:
        yield [name, *[None] * 11]
        return
    for kind in sorted({*replicate, *apply, *failures}):
        done, applied = _mapping(replicate.get(kind)), _mapping(apply.get(kind))
        failed = ", ".join(f"{count} {cell(reason)}" for reason, count in _mapping(failures.get(kind)).items())
        lately = [rate for rate in _mapping(rates.get(kind)).values() if isinstance(rate, int | float)]
        yield [name, kind, *_pace(done), failed or 0, round(sum(lately), 3), *_pace(applied)]


def _pace(pace: dict[str, Any]) -> list[Any]:
    """Total, rate, average and maximum; nothing where nothing of the kind was lately."""
    if not pace:
        return [0, 0.0, "", ""]
    times = (milliseconds(pace[key]) if pace.get(key) is not None else "" for key in ("average_ms", "max_ms"))
    return [pace.get("total"), pace.get("per_s"), *times]


def _isr(name: str, level: dict[str, Any]) -> list[Any]:
    isr = level.get("isr")
    if not isinstance(isr, dict):
        return [name, "", "", "", ""]
    return [name, isr.get("members"), isr.get("min_isr"), isr.get("replicas"), isr.get("partition")]
