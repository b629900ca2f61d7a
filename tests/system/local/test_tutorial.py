"""The first ten minutes of docs/start.md: their commands are run in their order, and print what the page shows.

Ports are those of the page. Directories below /tmp are below the test's own; the environment is that of the tests, so
that `make venv` is left out.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from isthmus.node.local import supervisor_client

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

REPOSITORY: Final = Path(__file__).parents[3]
PAGE: Final = (
    (REPOSITORY / "docs" / "start.md")
    .read_text()
    .partition("\n## The first ten minutes\n")[2]
    .partition("\n## Clusters on one machine\n")[0]
)
PATIENCE_S: Final = 60

COMMAND: Final = re.compile(r"(?:isthmus|curl|export|make|\w+=\$\() ?")
VARIES: Final = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ|\b[0-9a-f]{16}\b|(?<=vclock: )\S+|\S+@\w+|\d+(?:\.\d+)? m?s\b|\d+(?:\.\d+)?"
)
"""Times, tags, clocks, people, durations and numbers, which another run has otherwise."""


class Step(NamedTuple):
    """A command of the page, and the lines that it prints there."""

    command: str
    shown: list[str]


def steps() -> Iterator[Step]:
    """The commands of all blocks. A block without prompts is one command, or what an earlier command prints."""
    for block in re.findall(r"^```\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE):
        if block.startswith("$ "):
            for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                command, *shown = part.splitlines()
                yield Step(command, [line for line in shown if line and line != "..."])
        elif COMMAND.match(block):
            yield Step("".join(line for line in block.splitlines(True) if not line.startswith("make venv")), [])


def matches(shown: str, printed: str) -> bool:
    """A line of the page is among the printed ones, apart from what varies and from the widths of columns."""

    words = " ".join(shown.split())
    fixed = [words] if words.startswith("HTTP/") else VARIES.split(words)
    pattern = r"(?:\S+(?: m?s\b| [\d:]+Z)?|-)".join(re.escape(part) for part in fixed)
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    return any(re.fullmatch(pattern, line) for line in lines)


class Shell:
    """Somebody who types the page's commands in the checkout, one after the other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._exports = ""

    def run(self, step: Step) -> str:
        """What a command prints. One that reads is repeated until that is what the page shows: people type slowly."""
        command = re.sub(r"/tmp/(isthmus|proofs)\b", rf"{self._folder}/\1", step.command)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            printed = self._run(command)
            missing = [line for line in step.shown if not matches(line, printed)]
            if not missing:
                break
            assert " PUT " not in command, f"{command}\n{missing}\n{printed}"
            assert time.monotonic() < deadline, f"{command}\n{missing}\n{printed}"
            time.sleep(0.5)
        self._exports += "".join(line + "\n" for line in command.splitlines() if line.startswith("export "))
        return printed

    def _run(self, command: str) -> str:
        ran = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", self._exports + command],
            cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False,
            env={
                **os.environ,
                "HOME": str(self._folder),
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "PYTHONPATH": str(REPOSITORY),
            },
        )  # fmt: skip
        assert ran.returncode == 0, f"{command}\n{ran.stdout}\n{ran.stderr}"
        assert "Traceback" not in ran.stderr
        return ran.stdout + ran.stderr


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """Its clusters are stopped at the end, also of a test that fails."""
    yield Shell(tmp_path)
    supervisor_client.stop(tmp_path / "isthmus")


def test_the_tutorial_prints_what_it_shows(shell: Shell) -> None:
    """Every command, from the first start to the last stop; a Spark job and a SIGKILL are among them."""
    printed = {step.command: shell.run(step) for step in steps()}
    assert len(printed) > 15
    (looked,) = (text for command, text in printed.items() if "cluster status" in command)
    assert "problem:" not in looked
    (proven,) = (text for command, text in printed.items() if "reconcile run" in command)
    assert "outcome: equal" in proven
    assert "`outcome: equal`" in " ".join(PAGE.split())
