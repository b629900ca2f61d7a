"""Commands at an admin listener: options, confirmation, request and result in one place.

Such a command takes an `AdminCommand`, which `admin_query` (it reads) or `admin_act` (it changes) builds from the
options.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import click

from isthmus.node.cli.admin_client import AdminClient, admin_option
from isthmus.node.cli.output import (
    Row,
    TableSpec,
    echo_json,
    echo_result,
    echo_rows,
    object_in,
    objects_in,
    output_option,
    printable,
)
from isthmus.node.cli.parameters import BY, DRY_RUN, REASON, YES, confirm, node_options, with_options


@dataclass(frozen=True, slots=True)
class AdminCommand:
    """One command: where it is sent and how it prints; of a change also who makes it and why, and whether to ask
    before."""

    admin: AdminClient
    output: str
    attribution: Mapping[str, Any] = field(default_factory=dict)
    """Fields of every change: `by`, and as far as the command has these options `reason` and `node`."""
    yes: bool = True
    dry_run: bool = False

    @property
    def json(self) -> bool:
        """True with `-o json`."""
        return self.output == "json"

    @property
    def node(self) -> str | None:
        """The only node that is meant; None: all."""
        found: str | None = self.attribution.get("node")
        return found

    def get(self, path: str) -> dict[str, Any]:
        """The JSON object at `path`. Raises CommandFailed."""
        return self.admin.get(path)

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        """The answer to a request with this body and who makes it. Raises CommandFailed."""
        return self.admin.post(path, {**body, **self.attribution})

    def plan(self, path: str, **body: Any) -> dict[str, Any]:
        """The answer to a dry run of the request: what it would change. Raises CommandFailed."""
        return self.post(path, **body, dry_run=True)

    def confirm(self, question: str) -> None:
        """Ask, unless `--yes` was given. Raises CommandFailed where nobody can answer, click.Abort for a no."""
        confirm(self.yes, question, self.output)

    def echo(self, answer: Any, sentence: str) -> None:
        """Print the result: as JSON, or as one sentence."""
        echo_result(answer, self.output, sentence)

    def note(self, sentence: str) -> None:
        """Print a sentence for people; nothing with `-o json`."""
        if not self.json:
            click.echo(printable(sentence))

    def echo_json(self, answer: Any) -> bool:
        """Print the answer with `-o json`, otherwise nothing; True when it was printed."""
        if self.json:
            echo_json(answer)
        return self.json

    def echo_rows(self, answer: Row, key: str, table: TableSpec) -> None:
        """Print the answer: as JSON, or the objects under `key` as a table."""
        echo_rows(answer, self.output, table, objects_in(answer, key))


def note_other_nodes(command: AdminCommand, answer: Row) -> None:
    """Print which nodes have not read the newest settings, and of which it is unknown."""
    for node in answer.get("behind") or ():
        command.note(f"note: node {node} has not read the newest settings yet")
    for node, why in object_in(answer, "unknown").items():
        command.note(f"note: which settings are in force at node {node} is unknown: {why}")


def admin_query(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a command that reads, which gets them as the `AdminCommand` `query`."""

    @functools.wraps(command)
    def run(*, admin: AdminClient, output: str, **given: Any) -> Any:
        return command(**given, query=AdminCommand(admin, output))

    return admin_option(output_option(run))


def admin_act(
    *, nodes: bool = False, asks: bool = False, yes: bool = False, dry_run: bool = False, reason: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the options of a change to a command, which gets them as the `AdminCommand` `act`.

    `nodes`: --node and --all-nodes. `asks`: --yes and --dry-run; `yes`, `dry_run`: one of them. `reason`: the cluster
    keeps the reason with the change, so that it is sent also when it is empty; nodes of earlier versions refuse it in
    other changes.
    """
    options: list[Callable[[Any], Any]] = [node_options] * nodes + [YES] * (asks or yes)
    options += [DRY_RUN] * (asks or dry_run) + [BY, REASON, admin_option, output_option]

    attributes = ["by", "reason"] + ["node"] * nodes

    def added(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def run(*, admin: AdminClient, output: str, yes: bool = True, dry_run: bool = False, **given: Any) -> Any:
            attribution = {name: given.pop(name) for name in attributes}
            if not (reason or attribution["reason"]):
                del attribution["reason"]
            return command(**given, act=AdminCommand(admin, output, attribution, yes, dry_run))

        return with_options(*options)(run)

    return added
