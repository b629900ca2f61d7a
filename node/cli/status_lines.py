"""The screen of `isthmus status` as lines that fit the terminal.

They have at most its width and, where that is known, its height.
Pure but for the colours of the terminal.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any, Final

from isthmus.config.text import quantity
from isthmus.node.cli.output import (
    UNKNOWN,
    Column,
    Mark,
    Row,
    attribution,
    cell,
    column,
    milliseconds,
    moment,
    no_proof,
    percent,
    printable,
    styled,
    table_lines,
)
from isthmus.node.services.findings import AHEAD_MS, free_share

MARKS: Final = {
    "ok": Mark.GOOD,
    "warning": Mark.CHANGING,
    "critical": Mark.BAD,
    "unknown": Mark.UNKNOWN,
}

MARK: Final = column("", state=True)
CLUSTERS: Final[tuple[Column, ...]] = (
    column("cluster"),
    column("nodes"),
    column("online"),
    column("<ISR"),
    column("<min"),
    column("offline"),
    column("free", leave=3),
    column("certs", leave=4),
    column("gaps", leave=1),
    column("dead", leave=2),
)
LINKS: Final[tuple[Column, ...]] = (
    column("link"),
    column("queue"),
    column("behind"),
    column("objects"),
    column("proven"),
)
DAY_MS: Final = 86_400_000

SECTION_MIN: Final = 2
"""Lines that a section keeps on a screen that is too low: its first one, and how many more there are."""


def screen(report: Row, *, title: str, at_ms: int, width: int, height: int | None) -> list[str]:
    """The lines. `height` None: all of them."""
    state = MARKS[report["state"]]
    head = f"{state.glyph} {title}  {moment(at_ms)}"
    sections = [
        _table(CLUSTERS, [_cluster_cells(row, at_ms) for row in report["clusters"]], width),
        _links(report["links"], at_ms, width),
        _sentences("Set by operators", [(Mark.CHANGING, _held(row)) for row in report["held"]], width),
        _sentences("Problems", [(MARKS[row["state"]], _problem(row)) for row in report["amiss"]], width),
    ]
    shown = [section for section in sections if section]
    summary = styled(f"{state.glyph} {_summary(report)}", state, bold=True)
    if height is not None:
        shown = _fitted(shown, height - 3 - len(shown))
    lines = [styled(head[:width], None, bold=True)]
    for section in shown:
        lines += ["", *section]
    return [*lines, "", summary]


def _summary(report: Row) -> str:
    states, held = [row["state"] for row in report["amiss"]], len(report["held"])
    critical, warning, unknown = (states.count(word) for word in ("critical", "warning", "unknown"))
    parts = [f"{critical} critical"] * bool(critical) + [quantity(warning, "warning")] * bool(warning)
    parts = [*parts, *[f"{unknown} unknown"] * bool(unknown)] or ["all is well"]
    return ", ".join([*parts, *[f"set by operators: {held}"] * bool(held)])


def _fitted(sections: list[list[str]], height: int) -> list[list[str]]:
    """The sections in so many lines: the longest ones give way first, and say how many lines they lack."""
    lengths = [len(section) for section in sections]
    while sum(lengths) > height and max(lengths, default=0) > SECTION_MIN:
        lengths[lengths.index(max(lengths))] -= 1
    cut = []
    for section, length in zip(sections, lengths, strict=True):
        lacking = len(section) - length
        more = styled(f"  ... and {quantity(lacking + 1, 'line')} more (-o wide has all)", Mark.UNKNOWN)
        cut.append(section if not lacking else [*section[: length - 1], more])
    return cut


def _table(columns: Sequence[Column], rows: list[tuple[Mark, list[Any]]], width: int) -> list[str]:
    """A table whose rows begin with a mark."""
    if not rows:
        return []
    cells = [[mark.glyph, *values] for mark, values in rows]
    return table_lines((MARK, *columns), cells, width, wide=False, marks=False, hint=False)


def _cluster_cells(row: Row, at_ms: int) -> tuple[Mark, list[Any]]:
    if not row["answers"]:
        return Mark.UNKNOWN, [row["cluster"], "no answer", *[""] * (len(CLUSTERS) - 2)]
    nodes, partitions = row["nodes"], row["partitions"]
    below, least, offline = (partitions[key] for key in ("below_full_isr", "below_min_isr", "offline"))
    lived = f"{nodes['live']} of {nodes['total']}"
    shares = [share for disk in row["disks"] if (share := free_share(disk)) is not None]
    expires = row["certificates_expire_ms"]
    unknown = None in (below, least, offline) or bool(nodes["silent"])
    mark = (
        Mark.BAD if least or offline or (expires is not None and expires <= at_ms)
        else Mark.CHANGING if below or nodes["not_live"]
        else Mark.UNKNOWN if unknown or not partitions["total"]
        else Mark.GOOD
    )  # fmt: skip
    return mark, [
        row["cluster"],
        lived,
        f"{cell(partitions['online'])} of {cell(partitions['total'])}",
        below,
        least,
        offline,
        percent(min(shares)) if shares else None,
        "" if expires is None else "expired" if expires <= at_ms else f"{(expires - at_ms) // DAY_MS} d",
        row["gaps"],
        row["dead_letters"],
    ]


def _links(links: Sequence[Row], at_ms: int, width: int) -> list[str]:
    rows = [(MARKS[row["state"]], _link_cells(row, at_ms)) for row in links]
    lines = _table(LINKS, rows, width)
    for row in links:
        for cause in row["causes"]:
            lines += _wrapped(f"  {cell(row['from'])} \u2192 {cell(row['to'] or 'nobody yet')}: {cause}", width)
    return lines


def _link_cells(row: Row, at_ms: int) -> list[Any]:
    seconds, least = row["seconds"], row["at_least_s"]
    unknown = None if least is None else f"at least {milliseconds(1000 * least)}"
    return [
        f"{row['from']} \u2192 {row['to'] or 'nobody yet'}",
        row["queue"],
        unknown if seconds is None else milliseconds(1000 * seconds),
        row["objects"],
        _proven(row, at_ms),
    ]


def _proven(row: Row, at_ms: int) -> str:
    """When the other cluster was proven to have all of this one's writes; where they are to be equal, when they were
    so."""
    proven, equal = row["proven_ms"], row["equal_ms"]
    if proven is None:
        return UNKNOWN if row["proofs_unknown_at"] is None else no_proof(row)
    if not row["both_ways"]:
        return _ago(proven, at_ms)
    if equal is None:
        return f"{_ago(proven, at_ms)}, never equal"
    return f"equal {_ago(equal, at_ms)}" if equal >= proven else f"{_ago(proven, at_ms)}, equal {_ago(equal, at_ms)}"


def _ago(then_ms: int, at_ms: int) -> str:
    return f"{milliseconds(max(0, at_ms - then_ms))} ago" if then_ms <= at_ms + AHEAD_MS else UNKNOWN


def _held(row: Row) -> str:
    return f"{row['cluster']}: {row['what']}, {attribution(row)} (to end it, at {row['cluster']}: {row['next']})"


def _problem(row: Row) -> str:
    return f"{row['cluster']}: {row['sentence']}"


def _sentences(title: str, rows: list[tuple[Mark, str]], width: int) -> list[str]:
    if not rows:
        return []
    lines = [styled(title.upper(), None, bold=True)]
    for mark, sentence in rows:
        first, *others = _wrapped(f"{mark.glyph} {sentence}", width, indent="  ")
        lines += [styled(first[:2], mark, bold=True) + first[2:], *others]
    return lines


def _wrapped(text: str, width: int, indent: str = "    ") -> list[str]:
    return textwrap.wrap(printable(text), width, subsequent_indent=indent, break_on_hyphens=False) or [""]
