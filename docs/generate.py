"""Writes the generated parts of the reference pages from the product's own definitions: `make docs`.

A generated part stands between `<!-- generated: NAME -->` and `<!-- end of NAME -->`, in scripts between such lines
after `//`; everything else on a page is written by hand and stays. The texts come from docstrings of settings, the
tables of options, properties and metrics, the help of commands, OpenAPI, and the descriptions of nouns. tests/project
fails when a page differs from what this module makes.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, cast

import click
import msgspec
from msgspec import inspect as inspect_types

from isthmus.config.bucket_properties import ABSENT, FIXED, PROPERTIES
from isthmus.config.dynamic_options import OPTIONS
from isthmus.config.schema import SettingDefinition, sections_of, settings_of
from isthmus.config.settings import Effect, Settings
from isthmus.node.admin_api.application import AdminApi
from isthmus.node.cli.exit_codes import MEANINGS
from isthmus.node.cli.main import NOUNS, root
from isthmus.node.daemon import METRICS
from isthmus.node.http.application import AccessControl
from isthmus.node.http.openapi import describe
from isthmus.node.nouns.description import DescribedNoun
from isthmus.node.nouns.nouns import NOUNS as NOUNS_DESCRIBED
from isthmus.node.observability.metrics import kind_of
from isthmus.node.services.finding_codes import CODES
from isthmus.node.services.history_series import SERIES, name_of
from isthmus.repl.runtime.latency import KIND_NAMES
from isthmus.repl.runtime.metrics import PARTS

DOCS: Final = Path(__file__).parent

SCRIPT_TYPES: Final = "../node/dashboard/static/js/types.d.ts"
"""What the dashboard's JavaScript is checked against."""

WIDTH: Final = 120
"""Longest line of running text, as in the pages."""

GUIDES: Final[Mapping[str, str]] = {
    "audit": "[the audit log](what-happened.md#acts)",
    "backup": "[backup and restore](backup.md)",
    "bucket": "[properties](settings.md#properties)",
    "bucket-type": "[bucket types](commands.md#create-bucket-types), [properties](settings.md#properties)",
    "check": "[checks](commands.md#check-by-a-monitoring-system)",
    "cluster": (
        "[states](commands.md#states-of-clusters-nodes-and-partitions), [restarts](commands.md#wait-and-restart), "
        "[runbooks](runbooks.md)"
    ),
    "config": "[the config file](settings.md)",
    "context": "[contexts](commands.md#choose-the-cluster)",
    "dev": "[security](security.md)",
    "events": "[events](commands.md#find-out-what-happened)",
    "explain": "[queues](replication.md#lag-ledger-explain)",
    "fold": "[folds](fullsync.md#folds)",
    "fullsync": "[full-sync](fullsync.md)",
    "gaps": "[gaps](replication.md#gaps)",
    "kv": "[single values](commands.md#read-and-write-single-values)",
    "lag": "[lag, ledger, explain](replication.md#lag-ledger-explain)",
    "leader": "[leaders](commands.md#balance-leaders)",
    "local": "[clusters on one machine](start.md#clusters-on-one-machine)",
    "node": "[moves](commands.md#move-replicas), [runbooks](runbooks.md), [logs and signals](settings.md#log)",
    "option": "[dynamic options](settings.md#dynamic-options)",
    "partition": "[moves](commands.md#move-replicas), [placement files](commands.md#placement-files)",
    "queue": "[commands of queues](replication.md#of-queues)",
    "reconcile": "[Spark](spark.md)",
    "riak": "[Riak beside Isthmus](riak.md)",
    "sink": "[commands of sinks](replication.md#of-sinks)",
    "support-bundle": "[support bundles](commands.md#collect-a-support-bundle)",
    "status": "[the screen](commands.md#see-whether-all-is-well)",
}
"""Noun -> the pages that explain it."""

PUBLIC: Final[Mapping[str, Sequence[str]]] = {
    "isthmus.spark": (
        "register",
        "session",
        "reconcile",
        "ReconcileOptions",
        "findings_of",
        "StreamLag",
        "lag",
        "stats",
        "trees",
        "export_objects",
        "import_objects",
        "seed",
        "SeedOptions",
        "QueueHandOver",
        "AdminConnection",
        "Credentials",
    ),
    "isthmus.aae.run_directory": ("RunDirectory", "read_manifest", "ReadRange"),
    "isthmus.repl.model.errors": (
        "IsthmusError",
        "BadInput",
        "LocalFault",
        "PeerFault",
        "Retryable",
        "NotReady",
        "Overloaded",
        "OutcomeUnknown",
    ),
}
"""Module -> the names of it that programs may rely on (docs/releases.md), in the order of the page api.md."""

ADMIN: Final = "/admin/"
"""Beginning of the paths that operators request."""

NAME_IN_PATH: Final = re.compile(r"{(\w+)}")
"""A name in the pattern of a path."""

CREDENTIALS: Final = ("`--token-file`", "`--ca`", "`--cert`", "`--key`")
CONNECTION: Final = ("`--admin`", "`--context`", "`--cluster`", *CREDENTIALS)
"""The options of a connection, as the reference of commands spells them."""

SHARED_FROM: Final = 3
"""The reference of commands describes an option once if at least so many commands have it with one meaning."""


def blocks() -> dict[str, dict[str, str]]:
    """Page -> name of a generated part -> its text."""
    return {
        "settings.md": {**dict(settings_blocks(Settings, "")), "options": options_table(), **properties_blocks()},
        "metrics.md": metrics_blocks(),
        "api.md": {"public names": api_reference()},
        "commands.md": {
            "exit codes": table(("code", "meaning"), ((str(int(code)), text) for code, text in MEANINGS.items())),
        },
        "command-reference.md": {"reference": commands_reference()},
        "http-admin.md": {"requests": admin_requests()},
        SCRIPT_TYPES: {"nouns": "\n\n".join(interfaces(NOUNS_DESCRIBED))},
    }


def rewrite(page: str, parts: Mapping[str, str]) -> str:
    """The page with its generated parts replaced. Raises ValueError unless it has just these places."""
    pattern = re.compile(r"(?P<open><!-- |// )generated: (?P<name>[^\n]+?)(?P<close> -->|(?=\n))\n.*?"
                         r"(?P=open)end of (?P=name)(?P=close)", re.DOTALL)  # fmt: skip
    names = [match["name"] for match in pattern.finditer(page)]
    if sorted(names) != sorted(parts):
        raise ValueError(f"places for generated parts {sorted(names)}, but there are {sorted(parts)}")

    def made(match: re.Match[str]) -> str:
        begin, name, end = match["open"], match["name"], match["close"]
        return f"{begin}generated: {name}{end}\n{parts[name]}\n{begin}end of {name}{end}"

    return pattern.sub(made, page)


def stale_pages() -> dict[str, str]:
    """Page -> its current text, for each page whose file differs."""
    found = {}
    for name, parts in blocks().items():
        old = (DOCS / name).read_text()
        try:
            new = rewrite(old, parts)
        except ValueError as error:
            raise ValueError(f"docs/{name}: {error}") from error
        if new != old:
            found[name] = new
    return found


def main() -> None:
    """Rewrite the pages that are not current, and print their names."""
    for name, text in stale_pages().items():
        (DOCS / name).write_text(text)
        sys.stdout.write(f"{(DOCS / name).resolve().relative_to(DOCS.parent)}\n")


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table. An empty cell stays empty."""
    titles = tuple(head)
    lines = [titles, tuple("---" for _ in titles), *(tuple(row) for row in rows)]
    return "\n".join("|" + "".join(f" {cell} |" if cell else " |" for cell in line) for line in lines)


# The types of the dashboard's JavaScript


def interfaces(nouns: Iterable[DescribedNoun]) -> Iterator[str]:
    """An interface for each struct that the nouns' routes answer with, those first that others name."""
    done: set[type[msgspec.Struct]] = set()

    def of(struct: type[msgspec.Struct]) -> Iterator[str]:
        if struct in done:
            return
        done.add(struct)
        described = inspect_types.type_info(struct)
        assert isinstance(described, inspect_types.StructType)
        for part in described.fields:
            for named in _structs_of(part.type):
                yield from of(named)
        lines = (
            f"  {part.encode_name}{'' if part.required else '?'}: {script_type(part.type)};"
            for part in described.fields
        )
        yield "\n".join((f"export interface {struct.__name__} {{", *lines, "}"))

    for noun in nouns:
        for each in noun.answers():
            for answer in each.forms:
                yield from of(answer)


def script_type(kind: inspect_types.Type) -> str:
    """The type of a field, as TypeScript writes it."""
    match kind:
        case inspect_types.Metadata(type=inner):
            return script_type(inner)
        case inspect_types.UnionType(types=types):
            return " | ".join(map(script_type, types))
        case inspect_types.ListType(item_type=item):
            text = script_type(item)
            return f"({text})[]" if " " in text else f"{text}[]"
        case inspect_types.DictType(value_type=value):
            return f"Record<string, {script_type(value)}>"
        case inspect_types.StructType(cls=struct):
            return struct.__name__
        case inspect_types.StrType():
            return "string"
        case inspect_types.IntType() | inspect_types.FloatType():
            return "number"
        case inspect_types.BoolType():
            return "boolean"
        case inspect_types.LiteralType(values=values):
            return " | ".join(map(json.dumps, values))
        case inspect_types.NoneType():
            return "null"
        case inspect_types.TupleType(item_types=items):
            return f"[{', '.join(map(script_type, items))}]"
        case inspect_types.AnyType():
            return "unknown"
        case _:
            raise ValueError(f"no type of JavaScript for {kind}")


def _structs_of(kind: inspect_types.Type) -> Iterator[type[msgspec.Struct]]:
    match kind:
        case inspect_types.StructType(cls=struct):
            yield struct
        case inspect_types.Metadata(type=inner) | inspect_types.ListType(item_type=inner):
            yield from _structs_of(inner)
        case inspect_types.DictType(value_type=inner):
            yield from _structs_of(inner)
        case inspect_types.UnionType(types=types):
            for each in types:
                yield from _structs_of(each)
        case _:
            return


# The Python API


def api_reference() -> str:
    """A section for each module of PUBLIC: its docstring's first paragraph, then its names."""
    return "\n\n".join(
        "\n\n".join([f"## `{name}`", prose(inspect.getdoc(module) or "").split("\n\n")[0], *api_entries(module, names)])
        for name, names in PUBLIC.items()
        for module in [importlib.import_module(name)]
    )


def api_entries(module: Any, names: Iterable[str]) -> Iterator[str]:
    """Heading, signature and docstring of each name. Raises ValueError for a name without a docstring."""
    for name in names:
        yield from api_entry(name, getattr(module, name))


def api_entry(name: str, found: Any) -> Iterator[str]:
    """Heading, signature and docstring of a function or class."""
    if not found.__doc__:
        raise ValueError(f"{name} is public and has no docstring")
    yield f"### `{name}`"
    if inspect.isclass(found) and issubclass(found, Exception):
        yield "An exception, a kind of " + ", ".join(f"`{base.__name__}`" for base in found.__bases__) + "."
    else:
        yield f"```python\n{signature_text(name, found)}\n```"
    yield prose(inspect.getdoc(found) or "")


def signature_text(name: str, found: Any) -> str:
    """`name(parameters) -> result` with the types as the source has them, a parameter a line where it is long."""
    parameters, keyword_only = [], False
    for each in inspect.signature(found).parameters.values():
        if each.kind is each.KEYWORD_ONLY and not keyword_only:
            parameters.append("*")
            keyword_only = True
        default = "" if each.default is each.empty else f" = {each.default!r}"
        parameters.append(f"{each.name}: {annotation_text(each.annotation)}{default}")
    result = "" if inspect.isclass(found) else f" -> {annotation_text(inspect.signature(found).return_annotation)}"
    short = f"{name}({', '.join(parameters)}){result}"
    return (
        short if len(short) <= 100 else "\n".join([f"{name}(", *(f"    {each}," for each in parameters), f"){result}"])
    )


def annotation_text(annotation: Any) -> str:
    """A type as the source writes it."""
    return getattr(annotation, "__forward_arg__", None) or getattr(annotation, "__name__", None) or str(annotation)


def prose(text: str) -> str:
    """A docstring as Markdown: paragraphs in one piece, indented blocks as code."""
    pieces = []
    for piece in text.split("\n\n"):
        if piece.startswith("    "):
            pieces.append(f"```\n{textwrap.dedent(piece)}\n```")
        else:
            pieces.append(textwrap.fill(" ".join(piece.split()), WIDTH, break_long_words=False, break_on_hyphens=False))
    return "\n\n".join(pieces)


# Settings


def settings_blocks(section: type, path: str) -> Iterator[tuple[str, str]]:
    """(header, table) of each section of a config file, in the order of the code."""
    for each in sections_of(section):
        inner = f"{path}.{each.name}" if path else each.name
        header = f"[[{inner}]]" if each.many else f"[{inner}]"
        rows = [setting_row(setting) for setting in settings_of(each.kind).values()]
        if rows:
            yield header, table(("key", "default", "range", "meaning"), rows)
        yield from settings_blocks(each.kind, inner)


def setting_row(setting: SettingDefinition) -> tuple[str, str, str, str]:
    """One key: its default, its range and its meaning, with the ways to change it while the node runs."""
    default = "required" if setting.required else f"`{setting.form.text(setting.default)}`"
    meaning = setting.meaning
    for option in OPTIONS.values():
        if (option.section, option.field) == (setting.section, setting.field):
            meaning += f" While the cluster runs: [option](#dynamic-options) `{option.name}`."
    return f"`{setting.name}`", default, setting.form.allowed, meaning


# Options and properties


def options_table() -> str:
    """The dynamic options."""
    head = ("option", "default", "range", "unit", "scope", "meaning")
    return table(
        head,
        (
            (f"`{o.name}`", str(o.default), o.form.plain, o.form.unit_name or "-", o.scopes_text, o.meaning)
            for o in OPTIONS.values()
        ),
    )


def properties_blocks() -> dict[str, str]:
    """Properties that may be set (equal ones in one row), those with one possible value, those that are not shown."""
    ordered = sorted(PROPERTIES.values(), key=lambda each: (each.effect is Effect.NONE, each.name))
    settable: dict[tuple[str, str, str], list[str]] = {}
    for p in ordered:
        effect = f"{'none: ' if p.effect is Effect.NONE else ''}{p.meaning}"
        settable.setdefault((f"`{json.dumps(p.default)}`", p.form.allowed, effect), []).append(f"`{p.name}`")
    fixed = ((f"`{name}`", f"`{json.dumps(FIXED[name].value)}`", FIXED[name].why) for name in sorted(FIXED))
    absent = ((f"`{name}`", f"`{json.dumps(ABSENT[name][0])}`", ABSENT[name][1]) for name in sorted(ABSENT))
    return {
        "properties": table(
            ("property", "default", "values", "effect"), ((", ".join(names), *rest) for rest, names in settable.items())
        ),
        "fixed properties": table(("property", "value", "why"), fixed),
        "absent properties": table(("property", "value", "why"), absent),
    }


# Metrics


def metrics_blocks() -> dict[str, str]:
    """Section -> the table of its metrics, in the order of the definitions; and the tables of the history's series and
    of findings."""
    rows: dict[str, list[tuple[str, ...]]] = {}
    for name, family in METRICS.items():
        kind = "histogram" if name.endswith("_duration_seconds") else kind_of(name)[1]
        labels = " ".join(f"`{label}`" for label in family.labels)
        rows.setdefault(family.section, []).append((f"`{name}`", kind, labels, family.meaning, family.unit))
    return {
        **{
            f"metrics of {section}": table(("name", "type", "labels", "meaning", "unit"), found)
            for section, found in rows.items()
        },
        "series of the history": table(("series", "scope", "meaning", "unit"), series_rows()),
        "alerts of findings": table(("code", "alert on it", "alert on other metrics", "because"), alerts_of_findings()),
    }


def alerts_of_findings() -> Iterator[tuple[str, str, str, str]]:
    """A row for each code of findings: its alerts, with links to their runbooks, those by other metrics, and why."""
    for code, entry in sorted(CODES.items()):
        fires, beside = (
            ", ".join(f"[{name}](runbooks.md#{name.lower()})" for name in names)
            for names in (entry.alerts, entry.beside)
        )
        yield f"`{code}`", fires, beside, entry.because


# Requests of operators


def admin_requests() -> str:
    """The requests below /admin/, with the summaries of their OpenAPI description."""
    api = AdminApi(cast("Any", SimpleNamespace()), cast("Any", SimpleNamespace()), AccessControl(None, None))
    described = describe(api, "", "", objects=False)
    rows = (
        (f"`{method.upper()} {NAME_IN_PATH.sub(lambda name: name[1].upper(), path)}`", operation["summary"])
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
        if path.startswith(ADMIN)
    )
    return table(("request", "what it does"), rows)


def series_rows() -> Iterator[tuple[str, str, str, str]]:
    """The series of the history. Those of each part of a replica are one row, and those of each kind of entry."""
    parts = "|".join(PARTS)
    kinds = "|".join(KIND_NAMES.values())
    shown = set[str]()
    for one in SERIES.values():
        name = name_of(one, one.scope.name)
        of_part = re.sub(rf"^replog\.({parts})\.", "replog.PART.", name)
        of_kind = re.sub(rf"^(replicate|apply)\.({kinds})\.", r"\1.KIND.", name)
        meaning = one.meaning
        if of_part != name:
            name, meaning = of_part, re.sub(r"leaders|followers in sync|replicas out of sync", "`PART`", meaning)
        elif of_kind != name:
            name, meaning = of_kind, re.sub(rf"of kind ({kinds})", "of `KIND`", meaning)
        if name not in shown:
            shown.add(name)
            yield f"`{name}`", one.scope.value, meaning, one.unit


# Commands


class Line(NamedTuple):
    """An option as the reference shows it."""

    names: str
    rest: str

    @property
    def text(self) -> str:
        """The option with its values, default and meaning."""
        return f"- {self.names}{self.rest}"


class Command(NamedTuple):
    """A command with the options that its help shows."""

    context: click.Context
    command: click.Command

    @property
    def path(self) -> str:
        """`isthmus NOUN VERB`."""
        return self.context.command_path

    @property
    def lines(self) -> list[Line]:
        """Its options in the order of its help."""
        shown = (each for each in self.command.params if isinstance(each, click.Option) and not each.hidden)
        return [line_of(each) for each in shown]


def commands_of(group: click.Group, context: click.Context) -> Iterator[Command]:
    """Every command below a group that is no group itself."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context)
        if isinstance(command, click.Group):
            yield from commands_of(command, inner)
        elif not command.hidden:
            yield Command(inner, command)


def nouns() -> Iterator[tuple[str, click.Command, list[Command]]]:
    """Each noun with its command or group, and the commands below it."""
    context = click.Context(root, info_name="isthmus")
    for noun in root.list_commands(context):
        command = root.get_command(context, noun)
        assert command is not None
        inner = click.Context(command, info_name=noun, parent=context)
        found = list(commands_of(command, inner)) if isinstance(command, click.Group) else [Command(inner, command)]
        yield noun, command, found


def commands_reference() -> str:
    """An index, the options that commands of several nouns share, and a section for each noun."""
    known = list(nouns())
    everywhere = shared_lines(known)
    parts = [index_of_nouns(known), "## Common options", *common_options(everywhere)]
    for noun, command, found in known:
        guide = f"See {GUIDES[noun]}." if noun in GUIDES else ""
        if isinstance(command, click.Group):
            shared = [line for line in repeated(found) if line.names not in {each.names for each in everywhere}]
            parts += [f"## isthmus {noun}", *filled([*paragraphs(command.help), guide])]
            if shared:
                parts += ["In several of its commands:", "\n".join(line.text for line in shared)]
            parts += [part for each in found for part in command_parts(each, shared, everywhere, level=3)]
        else:
            parts += [*command_parts(found[0], [], everywhere, level=2), *filled([guide])]
    return "\n\n".join(part for part in parts if part)


def index_of_nouns(known: Iterable[tuple[str, click.Command, list[Command]]]) -> str:
    """A table of nouns; a verb links to its command's section."""
    rows = []
    for noun, command, found in known:
        links = (f"[{each.path.split(' ', 2)[2]}](#{anchor_of(each.path)})" for each in found)
        verbs = ", ".join(links) if isinstance(command, click.Group) else ""
        rows.append((f"[`{noun}`](#{anchor_of(f'isthmus {noun}')})", marked(NOUNS[noun].summary), verbs))
    return table(("noun", "for", "verbs"), rows)


def anchor_of(title: str) -> str:
    """The anchor of a heading."""
    return title.replace(" ", "-")


def shared_lines(known: Iterable[tuple[str, click.Command, list[Command]]]) -> list[Line]:
    """Options that mean the same in three commands or more, of two nouns or more; of each name the most frequent."""
    users: dict[Line, list[str]] = {}
    for noun, _, found in known:
        for line in (line for each in found for line in each.lines):
            users.setdefault(line, []).append(noun)
    best: dict[str, Line] = {}
    for line in sorted(users, key=lambda each: -len(users[each])):
        if len(users[line]) >= SHARED_FROM and len(set(users[line])) > 1:
            best.setdefault(line.names, line)
    return list(best.values())


def repeated(found: Iterable[Command]) -> list[Line]:
    """Options that mean the same in three commands of a noun or more; of each name the most frequent."""
    users = Counter(line for each in found for line in each.lines)
    best: dict[str, Line] = {}
    for line, count in users.most_common():
        if count >= SHARED_FROM:
            best.setdefault(line.names, line)
    return list(best.values())


def common_options(lines: Iterable[Line]) -> Iterator[str]:
    """The options that many commands have, those of connections by themselves. Raises ValueError where one of these is
    not shared."""
    by_name = {line.names: line for line in lines}
    connection = [by_name.pop(name, None) for name in CONNECTION]
    if None in connection:
        raise ValueError(f"no command has all of {', '.join(CONNECTION)}")
    yield "\n".join(line.text for line in by_name.values())
    yield (
        "A command refers to these, and to those of its noun, under *also*. *Connection* is all of the following, "
        "*credentials* the last four:"
    )
    yield "\n".join(line.text for line in connection if line is not None)


def command_parts(command: Command, of_noun: Sequence[Line], everywhere: Sequence[Line], level: int) -> list[str]:
    """Heading, usage, help and options of one command."""
    usage = command.command.collect_usage_pieces(command.context)
    own = [line for line in command.lines if line not in (*of_noun, *everywhere)]
    also = [line.names.split(", ")[0] for line in command.lines if line not in own]
    groups = (
        ([line.names.split(", ")[0] for line in of_noun], "all of the noun"),
        (CONNECTION, "connection"),
        (CREDENTIALS, "credentials"),
    )
    for members, name in groups:
        if len(members) > 1 and set(members) <= set(also):
            also = [*(each for each in also if each not in members), name]
    return [
        f"{'#' * level} {command.path}",
        f"`{' '.join([command.path, *usage])}`" if len(usage) > 1 else "",
        *filled(paragraphs(command.command.help)),
        "\n".join(line.text for line in own),
        *filled([f"Also: {', '.join(also)}." if also else ""]),
    ]


def line_of(option: click.Option) -> Line:
    """An option as the reference shows it: its names, then `VALUE (limits, default): meaning`."""
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    value, limits = value_of(option)
    notes = [*limits, *(["repeatable"] if option.multiple else []), *filter(None, [default_of(option)])]
    meaning = marked(" ".join((option.help or "").split()))
    if option.envvar:
        meaning += f" Variable: `{option.envvar}`."
    rest = "".join([f" {value}" if value else "", f" ({', '.join(notes)})" if notes else ""])
    return Line(names, f"{rest}: {meaning}" if meaning else rest)


def value_of(option: click.Option) -> tuple[str, list[str]]:
    """What an option takes, "" for a flag; and the limits of a number."""
    if option.is_flag:
        return "", []
    form = option.type
    if isinstance(form, click.Choice):
        return " or ".join(f"`{choice}`" for choice in form.choices), []
    if isinstance(form, click.IntRange | click.FloatRange):
        low, high = (None if bound is None else f"{bound:,}" for bound in (form.min, form.max))
        bounds = f"{low} to {high}" if low and high else f"from {low}" if low else f"to {high}" if high else ""
        return option.metavar or ("N" if isinstance(form, click.IntRange) else "NUMBER"), [bounds] if bounds else []
    return marked(option.metavar or form.name.upper()), []


def default_of(option: click.Option) -> str:
    """The default of an option as its help would show it; empty for none."""
    default: Any = option.default
    if isinstance(option.show_default, str):
        return f"default {option.show_default}"
    if option.required:
        return "required"
    if isinstance(default, tuple | list):
        return f"default {', '.join(f'`{each}`' for each in default)}" if default else ""
    if isinstance(default, str | int | float) and not isinstance(default, bool) and default != "":
        return f"default `{default:g}`" if isinstance(default, float) else f"default `{default}`"
    return ""


def paragraphs(text: str | None) -> list[str]:
    """The paragraphs of a help text, a line each, ready for Markdown."""
    found = inspect.cleandoc(text or "").replace("\b", "").split("\n\n")
    return [marked(" ".join(each.split())) for each in found if each]


def filled(texts: Iterable[str]) -> list[str]:
    """Paragraphs wrapped to the width of the pages."""
    return [textwrap.fill(each, WIDTH, break_long_words=False, break_on_hyphens=False) for each in texts]


def marked(text: str) -> str:
    """Plain text of a help as Markdown: options become code, and what Markdown would read as a sign is escaped."""
    pieces = re.split(r"(`[^`]*`)", text)
    for n in range(0, len(pieces), 2):
        plain = re.sub(r"([*<>|]|\b_|_\b)", r"\\\1", pieces[n])
        pieces[n] = re.sub(r"(?<![\w-])(--[a-z][a-z0-9-]*|-[a-z]\b)", r"`\1`", plain)
    return "".join(pieces)


if __name__ == "__main__":
    main()
