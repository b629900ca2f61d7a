"""Changes that operators make through a node: options, confirmation, request and result in one place.

A command that changes something takes an `AdminAct`, which `admin_act` builds from the options.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import click

from isthmus.node.cli.admin_client import AdminClient, admin_option
from isthmus.node.cli.output import echo_json, echo_result, output_option, printable
from isthmus.node.cli.parameters import BY, DRY_RUN, REASON, YES, confirm, node_options


@dataclass(frozen=True, slots=True)
class AdminAct:
    """One change: where it is sent, who makes it and why, and whether to ask before."""

    admin: AdminClient
    output: str
    attribution: Mapping[str, Any]
    """Fields of every request: `by`, and as far as the command has these options `reason` and `node`."""
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

    def echo_json(self, answer: Any) -> None:
        """Print the answer with `-o json`; otherwise nothing."""
        if self.json:
            echo_json(answer)


def admin_act(
    *, nodes: bool = False, asks: bool = False, yes: bool = False, dry_run: bool = False, reason: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the options of a change to a command, which gets them as the `AdminAct` `act`.

    `nodes`: --node and --all-nodes. `asks`: --yes and --dry-run; `yes`, `dry_run`: one of them. `reason`: --reason.
    """
    options: list[Callable[[Callable[..., Any]], Callable[..., Any]]] = [node_options] * nodes + [YES] * (asks or yes)
    options += [DRY_RUN] * (asks or dry_run) + [BY] + [REASON] * reason + [admin_option, output_option]

    attributes = ["by"] + ["reason"] * reason + ["node"] * nodes

    def added(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def run(*, admin: AdminClient, output: str, yes: bool = True, dry_run: bool = False, **given: Any) -> Any:
            attribution = {name: given.pop(name) for name in attributes}
            return command(**given, act=AdminAct(admin, output, attribution, yes, dry_run))

        changed: Callable[..., Any] = run
        for option in reversed(options):
            changed = option(changed)
        return changed

    return added
