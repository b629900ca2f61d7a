"""`isthmus sink`: what this cluster fetches from others, and its suspension by queue or by peer.

Shows and asks what a node's admin listener offers; the rules of suspension are kept in `sink`.
"""

from __future__ import annotations

from typing import Any, Final

import click

from node.cli.cluster import listed
from node.cli.output import echo_json, echo_table, milliseconds, output_option, printable
from node.cli.queue import BY, REASON
from node.cli.remote import AdminClient, admin_option

QUEUE = click.option("--queue", help="Only fetches from the queue of this name.")
PEER = click.option("--peer", metavar="URL", help="Only fetches from this peer.")

OUTCOMES: Final = ("applied", "superseded", "merged", "rejected")


@click.group("sink")
def sink_group() -> None:
    """Look at sinks; suspend and resume them."""


@sink_group.command("list")
@admin_option
@output_option
def list_sinks(admin: AdminClient, output: str) -> None:
    """Every queue and peer that is fetched from, with outcomes and lag."""
    answer = admin.get("/admin/sink")
    if output == "json":
        echo_json(answer)
        return
    columns = ("queue", "peer", "state", "delay", *OUTCOMES, "lag p50", "lag p99", "reason", "last error")
    echo_table(columns, (_row(sink) for sink in listed(answer, "sinks")))


@sink_group.command("suspend")
@QUEUE
@PEER
@BY
@REASON
@admin_option
@output_option
def suspend(queue: str | None, peer: str | None, by: str, reason: str, admin: AdminClient, output: str) -> None:
    """Start no new fetch until resumed, over restarts too; running ones finish. Without options: of all."""
    answer = admin.post("/admin/sink/suspend", {"queue": queue, "peer": peer, "by": by, "reason": reason})
    _echo(answer, output, f"{_what(queue, peer)}: suspended")


@sink_group.command("resume")
@QUEUE
@PEER
@BY
@admin_option
@output_option
def resume(queue: str | None, peer: str | None, by: str, admin: AdminClient, output: str) -> None:
    """Fetch again. Without options: from all."""
    answer = admin.post("/admin/sink/resume", {"queue": queue, "peer": peer, "by": by, "reason": ""})
    _echo(answer, output, f"{_what(queue, peer)}: resumed")


def _what(queue: str | None, peer: str | None) -> str:
    parts = [f"queue {queue}"] * (queue is not None) + [f"peer {peer}"] * (peer is not None)
    return "sink, " + (" at ".join(parts) if parts else "all queues and peers")


def _echo(answer: dict[str, Any], output: str, sentence: str) -> None:
    if output == "json":
        echo_json(answer)
    else:
        click.echo(printable(sentence))


def _row(sink: dict[str, Any]) -> list[Any]:
    """`last_error` is null when there was none; everything else that is null is not known. The reason of a
    suspension says who made it."""
    error = "" if "last_error" in sink and sink["last_error"] is None else sink.get("last_error")
    times = [milliseconds(sink.get(key)) for key in ("delay_ms", "lag_ms_p50", "lag_ms_p99")]
    outcomes = [sink.get(key) for key in OUTCOMES]
    reason = sink.get("reason") or ""
    return [sink.get("queue"), sink.get("peer"), sink.get("state"), times[0], *outcomes, *times[1:], reason, error]
