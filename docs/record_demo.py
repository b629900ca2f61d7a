"""Makes the picture of a demo's end for README.md, from what a real run prints.

    isthmus demo 2>&1 | tee demo.txt && python -m docs.record_demo <demo.txt >docs/images/demo.svg

Shown are the rows of ROWS and the last line, wrapped as on a terminal of WIDTH columns. The SVG loads no font, so that
it looks the same without a network.
"""

from __future__ import annotations

import io
import re
import sys
import textwrap
from collections.abc import Iterator
from typing import Final

from rich.console import Console
from rich.text import Text

ROWS: Final = (
    "FIGURE", "operations", "replay", "longest pause", "broken", "replicas in sync", "until nothing", "lag", "compared",
    "differences",
)  # fmt: skip
"""Beginnings of the rows that are shown; a run prints more figures."""

FONTS: Final = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas"
"""Fonts of the reader's machine, instead of one from another host."""

WIDTH: Final = 80
END: Final = "equal: "
COMMAND: Final = "$ isthmus demo"


def shown_lines(output: str) -> Iterator[str]:
    """The rows of ROWS, wrapped, and the verdict. Raises ValueError where the run did not end with equal clusters."""
    lines = output.splitlines()
    verdicts = [line for line in lines if line.startswith(END)]
    starts = [at for at, line in enumerate(lines) if line.startswith(ROWS[0])]
    if not verdicts or not starts:
        raise ValueError(f"no table of figures, or no line that begins with {END!r}: not the output of a whole demo")
    column = lines[starts[-1]].index("VALUE")
    for line in lines[starts[-1] :]:
        if line.startswith(ROWS):
            first, *more = textwrap.wrap(line[column:], WIDTH - column)
            yield line[:column] + first
            yield from (" " * column + piece for piece in more)
    yield verdicts[-1]


def picture(output: str) -> str:
    """The SVG of a demo's output."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text(COMMAND, style="bold"))
    style = ""
    for line in shown_lines(output):
        if line[0] != " ":  # a line that goes on has the style of its row
            style = {"FIGURE": "bold", "broken": "yellow", END.strip(): "bold green"}.get(line.split(" ")[0], "")
        console.print(Text(line, style=style), soft_wrap=True)
    drawn = console.export_svg(title="isthmus demo", unique_id="demo")
    without_fonts = re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)
    return without_fonts.replace("font-family: Fira Code", f"font-family: {FONTS}") + "\n"


if __name__ == "__main__":
    sys.stdout.write(picture(sys.stdin.read()))
