"""`isthmus NOUN VERB`: finds the noun's commands, runs one, and turns failures into lines and exit codes.

Each noun is a module, imported when it is used, so that `isthmus --help` is quick and a module that cannot be imported
affects no other noun.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from isthmus.config.text import similar
from isthmus.node.cli.exit_codes import (
    MEANINGS,
    OWN_PACKAGES,
    CommandFailed,
    Exit,
    Failure,
    failure_of,
    missing_package,
)
from isthmus.node.cli.output import CliContext, printable


class Noun(NamedTuple):
    """Module and attribute of a noun's command or group, and its line in the help."""

    module: str
    attribute: str
    summary: str


def _cli(module: str, attribute: str, summary: str) -> Noun:
    return Noun(f"isthmus.node.cli.{module}", attribute, summary)


GROUPS: Final[Mapping[str, Mapping[str, Noun]]] = {
    "Basics": {
        "status": _cli("status", "status_command", "All clusters on one screen: lag, overrides, problems."),
        "context": _cli("context", "context_group", "Name clusters with their addresses and credentials."),
        "dashboard": _cli("dashboard", "dashboard_command", "The address of a node's pages for a browser."),
        "check": _cli("check", "check_group", "Probes for monitoring: lag, isr, sync, gaps, sink."),
        "help": _cli("help", "help_command", "The help of a command, of connections, of exit codes."),
        "version": _cli("version", "version_command", "The version of this installation, and its extras."),
    },
    "Cluster": {
        "cluster": _cli("cluster", "cluster_group", "A cluster as a whole: status, waiting, restarts, recovery."),
        "node": _cli("node", "node_group", "Run a node; list, drain, remove and renew nodes."),
        "partition": _cli("partition", "partition_group", "Look at partitions, place and move them, force a leader."),
        "leader": _cli("leader", "leader_group", "Look at leaders, and balance them."),
        "bucket-type": _cli(
            "bucket_type", "bucket_type_group", "Create and change bucket types; show their placement."
        ),
        "bucket": _cli("bucket", "bucket_group", "Properties of single buckets: show, set and unset them."),
        "option": _cli("option", "option_group", "Look at dynamic options; set and unset them."),
        "config": _cli("config", "config_group", "Check and show config files."),
        "backup": _cli("backup", "backup_group", "Back up a node's data while it runs; verify, restore."),
        "events": _cli("events", "events_command", "What happened lately on all nodes, in one timeline."),
        "support-bundle": _cli(
            "support", "support_command", "Collect what a support case needs in one file, no secrets."
        ),
        "audit": _cli("audit", "audit_group", "Look at the audit log: who changed what, and when."),
    },
    "Replication": {
        "lag": _cli("replication", "lag_command", "How far other clusters are behind: seconds, objects, bytes."),
        "queue": _cli("queue", "queue_group", "Look at source queues; register, suspend, limit them."),
        "sink": _cli("sink", "sink_group", "Look at sinks; suspend and resume them."),
        "riak": _cli("riak", "riak_group", "Fetch from a Riak; check it, and seed from it."),
        "gaps": _cli("queue", "gaps_of_queues", "Changes given up by queues and not proven by full-sync."),
        "ledger": _cli("replication", "ledger_command", "The outcome of every change sent and received."),
        "fullsync": _cli("fullsync", "fullsync_group", "Compare with other clusters, and repair what differs."),
        "explain": _cli("replication", "explain_command", "One key: where it was accepted, where it is, what follows."),
    },
    "Data": {
        "kv": _cli("kv", "kv_group", "Get, put, delete and list values."),
        "fold": _cli("fold", "fold_group", "Look at, or act on, all keys of a type, bucket or range."),
    },
    "Spark": {
        "reconcile": _cli("reconcile", "reconcile_group", "Compare two clusters key by key, and repair what differs."),
    },
    "Development": {
        "demo": Noun(
            "isthmus.node.demo.command", "demo_command", "Two clusters on this machine: load, replicate, compare."
        ),
        "local": _cli("local", "local_group", "Start and stop clusters on this machine."),
        "dev": _cli("dev", "dev_group", "Certificates and tokens for trying things out."),
    },
}
"""Nouns by the section of the help that lists them, in its order. A noun whose module is not installed is not offered.
Each summary fits a line of 80 columns."""

NOUNS: Final[Mapping[str, Noun]] = {name: noun for nouns in GROUPS.values() for name, noun in nouns.items()}


YES_FLAG: Final = "--yes"
"""The option of commands that ask before they act, because what they do cannot be taken back."""

COMPLETE_VARIABLE: Final = "_ISTHMUS_COMPLETE"
"""Is set while a shell asks for completions."""


class LazyNouns(click.Group):
    """A group whose members are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Nouns of this installation."""
        return [name for name, noun in NOUNS.items() if find_spec(noun.module) is not None]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The noun's command, imported now; None for an unknown noun."""
        if cmd_name not in self.list_commands(ctx):
            return None
        noun = NOUNS[cmd_name]
        try:
            command = getattr(importlib.import_module(noun.module), noun.attribute)
        except ImportError as error:
            missing = missing_package(error) if isinstance(error, ModuleNotFoundError) else ""
            sentence = missing or f"`isthmus {cmd_name}` lacks a part: {error}; install Isthmus again"
            raise CommandFailed(Exit.LOCAL_FAULT, "missing-part", sentence) from error
        assert isinstance(command, click.Command)
        if COMPLETE_VARIABLE in os.environ:
            from isthmus.node.cli import completion

            completion.attach(cmd_name, command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does; the error for an unknown noun suggests similar ones."""
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:
            raise click.exceptions.NoSuchCommand(args[0], possibilities=self.list_commands(ctx), ctx=ctx) from error

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a closed pipe has its own exit code, where click's is 1."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise CommandFailed(Exit.PIPE_CLOSED, "pipe-closed", MEANINGS[Exit.PIPE_CLOSED]) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The nouns with their summaries, without importing any."""
        known = self.list_commands(ctx)
        wide = max(map(len, known))
        for title, nouns in GROUPS.items():
            rows = [(f"{name:<{wide}}", noun.summary) for name, noun in nouns.items() if name in known]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


@click.command(
    cls=LazyNouns, subcommand_metavar="NOUN VERB ...", context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(package_name="isthmus", message="%(package)s %(version)s")
def root() -> None:
    """A replicated key-value store whose clusters keep each other equal, and can prove it.

    Begin with status, kv, queue, sink, fullsync and explain. `isthmus help NOUN VERB` or --help shows a command,
    `isthmus help connection` how a cluster is found.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code (see `node.cli.exit_codes`). Never raises for an expected failure."""
    context = CliContext()
    open_streams()
    try:
        check_packages()
        result = root.main(
            args=None if arguments is None else list(arguments),
            prog_name="isthmus",
            standalone_mode=False,
            obj=context,
        )
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return Exit.USAGE
    except click.ClickException as error:
        _report(Failure(Exit.USAGE, "usage", [_usage_sentence(error)]), context.output)
        return Exit.USAGE
    except (click.Abort, KeyboardInterrupt):
        return Exit.INTERRUPTED
    except Exception as error:  # noqa: BLE001 -- the last handler: expected failures become lines, bugs show their traceback
        failure = failure_of(error)
        if failure is None:
            traceback.print_exc()
            return Exit.BROKEN
        if failure.exit_code is Exit.PIPE_CLOSED:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more at exit
        else:
            _report(failure, context.output)
        return failure.exit_code
    return result if isinstance(result, int) else Exit.OK


def open_streams() -> None:
    """Open streams that the caller has closed (`>&-`) on /dev/null: otherwise the next file gets their number, and
    methods of a missing stream fail."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 -- as long as the process


def check_packages() -> None:
    """Check that all packages lie in one folder: an older copy in PYTHONPATH would be mixed with this one.

    Raises CommandFailed (LOCAL_FAULT) with both folders.
    """
    root = Path(__file__).resolve().parents[2]
    for name in OWN_PACKAGES:
        file = importlib.import_module(name).__file__
        if file is None or Path(file).resolve().parents[1] != root:
            found = "a folder without code" if file is None else str(Path(file).parent)
            sentence = f"package {name} is {found}, not Isthmus's own in {root}; take the other from PYTHONPATH"
            raise CommandFailed(Exit.LOCAL_FAULT, "shadowed-package", sentence)


def _usage_sentence(error: click.ClickException) -> str:
    message = error.format_message()
    if isinstance(error, click.NoSuchOption | click.exceptions.NoSuchCommand):
        message = error.message + _suggestion(error)  # not click's: the likeliest first, nothing that is far off
    sentence = " ".join(message.split())
    if isinstance(error, click.UsageError) and error.ctx is not None:
        sentence += f" (`{error.ctx.command_path} --help` shows the usage)"
    return sentence


SUGGESTIONS_MAX: Final = 3
"""Names that a message suggests for a misspelled one."""


def _suggestion(error: click.NoSuchOption | click.exceptions.NoSuchCommand) -> str:
    """What an unknown option or command may have been meant as, the likeliest first; of equally likely ones those
    that ask before they act are last."""
    context = error.ctx
    if context is None:
        return ""
    if isinstance(error, click.NoSuchOption):
        asks = {YES_FLAG}
        name = error.option_name
        shown = [each for each in context.command.params if isinstance(each, click.Option) and not each.hidden]
        known = [flag for each in shown for flag in (*each.opts, *each.secondary_opts) if flag.startswith("--")]
        for each in context.command.params:
            if isinstance(each, click.Argument) and each.name == name.lstrip("-").replace("-", "_"):
                return f" {each.make_metavar(context)} is an argument: write its value without {name}."
    else:
        assert isinstance(context.command, click.Group)
        name = error.command_name
        known, asks = [], set()
        for verb in context.command.list_commands(context):
            hidden, dangerous = _hidden_and_asks(context, verb)
            known += [verb] * (not hidden)
            asks |= {verb} if dangerous else set()
    close = similar(name, sorted(known, key=lambda each: each in asks), most=SUGGESTIONS_MAX)
    match close:
        case []:
            return ""
        case [only]:
            return f" Did you mean {only!r}?"
        case _:
            return f" Did you mean one of: {', '.join(map(repr, close))}?"


def _hidden_and_asks(context: click.Context, verb: str) -> tuple[bool, bool]:
    """Whether a command is hidden, and whether it asks before it acts. A noun is neither, and is not imported."""
    if isinstance(context.command, LazyNouns):
        return False, False
    assert isinstance(context.command, click.Group)
    command = context.command.get_command(context, verb)
    assert command is not None
    return command.hidden, any(YES_FLAG in each.opts for each in command.params)


def _report(failure: Failure, output: str) -> None:
    """One line on standard error for each sentence; with `-o json` one JSON object in one line."""
    if output == "json":
        click.echo(json.dumps({"error": "\n".join(failure.sentences), "reason": failure.reason}), err=True)
        return
    for sentence in failure.sentences:
        click.echo(f"isthmus: {printable(sentence)}", err=True)


if __name__ == "__main__":
    sys.exit(main())
