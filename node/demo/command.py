"""`isthmus demo`: two clusters on this machine, a history replayed, every key compared, by `node.demo.run`."""

from __future__ import annotations

from pathlib import Path

import click

from isthmus.node.cli.exit_codes import Exit
from isthmus.node.cli.output import output_option
from isthmus.node.cli.parameters import Count, Number


@click.command("demo")
@click.option(
    "--git",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Replay this repository's history instead of this checkout's.",
)
@click.option(
    "--rate",
    type=Number(min=0),
    metavar="N",
    help="Operations a second; 0 is as fast as possible. Without it the replay is spread over 100 s; it takes longer "
    "on a slow or busy machine.",
)
@click.option("--keep", is_flag=True, help="Leave the clusters running, and print how to talk to them.")
@click.option("--seed", type=Count(min=0), metavar="N", help="Seed of the history that is made here.")
@click.option(
    "--operations",
    type=Count(min=1),
    metavar="N",
    help="Length of the history that is made here (8,000), where one is needed.",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where data and logs go: an empty directory that is kept. Without it a temporary one.",
)
@click.option("--no-break", is_flag=True, help="Kill nothing; by default a node and a ZooKeeper are killed with -9.")
@output_option
def demo_command(
    git: Path | None,
    rate: float | None,
    keep: bool,
    seed: int | None,
    operations: int | None,
    directory: Path | None,
    no_break: bool,
    output: str,
) -> int:
    """Two clusters on this machine: load, replicate, prove them equal.

    Each cluster has three nodes and keeps three replicas of every key. The history of a git repository is replayed
    into cluster east while cluster west receives it; meanwhile one of east's nodes and its ZooKeeper are killed with
    kill -9, and you see leaders move and replicas fall out of sync and return. Kill more of the processes shown, if
    you like, and watch it on the dashboards, whose addresses are printed. Then every key of both clusters is compared
    with the repository. Ends with 0 only when both clusters hold exactly what they must, with 1 and the differences
    named otherwise.
    """
    from isthmus.node.demo.live_view import view_for
    from isthmus.node.demo.run import MADE_COUNT, DemoOptions, curl_lines, dashboard_lines, run_demo

    view = view_for(output)
    demo = run_demo(DemoOptions(git, rate, keep, seed, directory, operations or MADE_COUNT, not no_break), view)
    outcome, verdict = demo.outcome, demo.outcome.verdict
    outcome.show(output, {"directory": str(demo.directory), "clusters": demo.clusters if keep else {}})
    for difference in verdict.differences:
        view.note(f"  {difference}")
    if verdict.difference_count > len(verdict.differences):
        view.note(f"  and {verdict.difference_count - len(verdict.differences):,} more")
    if outcome.equal:
        view.note("equal: both clusters hold exactly the content of the history")
    else:
        outstanding = outcome.outstanding or "nothing outstanding"
        view.note(f"NOT EQUAL: {verdict.difference_count:,} differences; {outstanding}")
    if keep:
        view.note("the clusters go on running:")
        for line in (*dashboard_lines(demo), *curl_lines(demo)):
            view.note(f"  {line}")
    return Exit.OK if outcome.equal else Exit.DIFFERS
