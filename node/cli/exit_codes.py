"""Exit codes: one table for every command, and the exit code of each failure.

Scripts and monitors depend on these numbers; the table of docs/commands.md is generated from this one. An expected
failure becomes one line on standard error (`node.cli.main` prints it); a bug keeps its traceback.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from isthmus.config.loader import ConfigError
from isthmus.repl.controller.placement import BadReplicaMap
from isthmus.repl.extras import EXTRA_OF, MissingExtra, missing_sentence
from isthmus.repl.model.errors import BadConfig, BadInput, IsthmusError, LocalFault


class Exit(IntEnum):
    """Exit code of a command."""

    OK = 0
    DIFFERS = 1
    USAGE = 2
    UNAVAILABLE = 3
    REFUSED = 4
    LOCAL_FAULT = 5
    BROKEN = 70
    INTERRUPTED = 130
    PIPE_CLOSED = 141


MEANINGS: Final[Mapping[Exit, str]] = {
    Exit.OK: "done; what was checked is right",
    Exit.DIFFERS: "a check failed, two sides differ, or a key is absent or has siblings",
    Exit.USAGE: "wrong command line, a file that it names is not there, or faults in a config or placement file",
    Exit.UNAVAILABLE: "incomplete: a node does not answer, is not ready, or the outcome is unknown",
    Exit.REFUSED: "the cluster refused the command",
    Exit.LOCAL_FAULT: "this machine's set-up is at fault: disk, data directory, port, Java, missing package",
    Exit.BROKEN: "a node's log or store failed while it ran, or a bug (its traceback is on standard error)",
    Exit.INTERRUPTED: "interrupted by Ctrl-C, or a question was answered with no",
    Exit.PIPE_CLOSED: "the reader of the output has closed it",
}


class CommandFailed(Exception):
    """An expected failure of a command: exit code, stable reason code, and one sentence."""

    def __init__(self, exit_code: Exit, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code
        self.reason = reason


class Failure(NamedTuple):
    """An expected failure as it is printed; `sentences` has one line for each fault."""

    exit_code: Exit
    reason: str
    sentences: list[str]


def failure_of(error: Exception) -> Failure | None:
    """The failure that an exception is to the caller of a command; None for a bug."""
    match error:
        case CommandFailed():
            return Failure(error.exit_code, error.reason, [str(error)])
        case ConfigError():
            return Failure(Exit.USAGE, BadConfig.reason, error.sentences())
        case BadReplicaMap():
            return Failure(Exit.USAGE, error.reason, list(error.faults))
        case BadConfig() | BadInput():
            return Failure(Exit.USAGE, error.reason, [str(error)])
        case LocalFault():
            return Failure(Exit.LOCAL_FAULT, error.reason, [str(error)])
        case IsthmusError():
            return Failure(Exit.UNAVAILABLE, error.reason, [str(error)])
        case UnicodeEncodeError() if error.reason == "surrogates not allowed":  # what Python makes of other bytes
            raw = error.object[max(0, error.start - 20) : error.end + 20].encode("utf-8", "surrogateescape")
            return Failure(Exit.USAGE, "bad-input", [f"an argument is not UTF-8 text: {raw!r}"])
        case ModuleNotFoundError() if missing := missing_package(error):
            return Failure(Exit.LOCAL_FAULT, "missing-part", [missing])
        case BrokenPipeError():
            return Failure(Exit.PIPE_CLOSED, "pipe-closed", [MEANINGS[Exit.PIPE_CLOSED]])
        case OSError():
            what = error.strerror or (os.strerror(error.errno) if error.errno else str(error))
            where = f"{error.filename}: " if error.filename is not None else ""
            return Failure(Exit.LOCAL_FAULT, LocalFault.reason, [f"{where}{what}"])
        case _:
            return None


OWN_PACKAGES: Final = tuple(f"isthmus.{name}" for name in ("config", "repl", "queues", "aae", "sink", "node"))


def missing_package(error: ModuleNotFoundError) -> str:
    """How to install a missing package; "" where a package of Isthmus itself is missing, which is a bug."""
    if isinstance(error, MissingExtra):
        return str(error)
    name = (error.name or "").partition(".")[0]
    if not name or name == "isthmus":
        return ""
    return missing_sentence("this command", name, EXTRA_OF.get(name, ""))
