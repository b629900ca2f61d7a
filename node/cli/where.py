"""Where an operator's act holds: `--node NAME` for one node, `--all-nodes` (the default) for every one.

An act without either holds on all, so `--all-nodes` only says it aloud; both at once contradict each other. Only
options stand here: what an act on a node means is its own room's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

_SAID: Final = "node.cli.where"


def _once(context: click.Context, _parameter: click.Parameter, value: Any) -> Any:
    if value:
        if context.meta.get(_SAID):
            raise click.UsageError("--node and --all-nodes contradict each other: give one of them")
        context.meta[_SAID] = True
    return value


def node_options(command: F) -> F:
    """`--node` as the parameter `node`, None for all; `--all-nodes` beside it."""
    one = click.option("--node", metavar="NAME", callback=_once, help="Only on the node of this name.")
    every = click.option(
        "--all-nodes", is_flag=True, expose_value=False, callback=_once, help="On all nodes, which is the default."
    )
    return one(every(command))
