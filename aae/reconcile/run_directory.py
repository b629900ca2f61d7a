"""A run's directory: what was wanted, what is done, and what came of it. Free of Spark.

    OUTPUT/run_id=ID/
      run.json            what is compared, with what; a run id stands for one question for ever
      plan.json           trees or everything, as of when, and the chunks of segments
      work/NNNN.json      a wave of chunks that is done; NNNN/ beside it has its rows (Parquet)
      findings/           one row a key that differs (Parquet, by verdict)
      segments/           one row a chunk
      summary.json        totals, never cut short; there once everything that could be done is done, and gone while
                          the findings are written anew
      repairs/            plans, and how far each is applied (`repair`)

Every document is written whole or not at all, a wave's after its rows: whatever was killed goes on from the last one.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, NamedTuple

from xxhash import xxh64_intdigest

from isthmus.repl.model.errors import BadInput, LocalFault

RUN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")

RUN: Final = "run_id"
SEED: Final = "seed_id"
IMPORT: Final = "import_id"
"""What a directory's name begins with: a comparison, a seed (`seed`), an import (`export`)."""

FIRST: Final = "first"
SECOND: Final = "second"

FORM: Final = 1
"""Version of the documents."""

DOCUMENT_BYTES_MAX: Final = 256 * 1024 * 1024
"""Largest document that is read: a plan names each range, and a cluster of 10^9 objects has some megabytes of them."""


def program_version() -> str:
    """Of the code that works here, as it was installed or came in the archive; "unknown" of a tree that was neither."""
    try:
        return version("isthmus")
    except PackageNotFoundError:
        return "unknown"


class SegmentChunk(NamedTuple):
    """The unit of work: runs [first, end) of segments."""

    number: int
    runs: tuple[tuple[int, int], ...]

    @property
    def segments(self) -> int:
        """How many."""
        return sum(end - first for first, end in self.runs)


class ChunkResult(NamedTuple):
    """What one look at a chunk counted. `error`: it could not be read, and the counts say nothing."""

    chunk: int
    error: str
    left_rows: int
    right_rows: int
    match: int
    candidates: int
    filtered: int
    bytes: int
    transient: int = 0
    diverged: int = 0
    unreachable: int = 0


def _done(row: Sequence[Any]) -> ChunkResult:
    """Of a wave's document. Raises TypeError, ValueError."""
    found = ChunkResult(*row)
    chunk, error, *counts = found
    if type(error) is not str or any(type(one) is not int or one < 0 for one in (chunk, *counts)):
        raise ValueError(f"{row!r:.200} is no look at a chunk")
    return found


class Wave(NamedTuple):
    """Chunks that were looked at together; `at_ms` is when they had been."""

    number: int
    look: str
    at_ms: int
    done: tuple[ChunkResult, ...]


class RunDirectory:
    """One run under an output directory, which the driver and all workers reach under the same path."""

    def __init__(self, output: str, run_id: str, kind: str = RUN) -> None:
        if not RUN_ID.match(run_id):
            raise BadInput(f"run id {run_id!r}: letters, digits, dots, dashes and underscores are right, at most 100")
        self.run_id = run_id
        self.path = Path(output).absolute() / f"{kind}={run_id}"

    def opened(self, wanted: dict[str, Any]) -> bool:
        """Make the run, or go on with it; whether it was there. Raises BadInput when it was about something else."""
        known = self.read("run.json")
        asked: dict[str, Any] = {"form": FORM, **wanted}
        if known is None:
            self.write("run.json", asked)
            return False
        differing = sorted(name for name in known.keys() | asked.keys() if known.get(name) != asked.get(name))
        if differing:
            raise BadInput(
                f"run {self.run_id} is there and was asked with other {', '.join(differing)}: take another --run-id, "
                "or the same options"
            )
        return True

    def options_hash(self) -> str:
        """Of the options that say what the run is about, in hexadecimal: the same for the same question. "" before
        there are any."""
        known = self.read("run.json")
        return "" if known is None else f"{xxh64_intdigest(json.dumps(known, sort_keys=True).encode()):016x}"

    def read(self, name: str) -> dict[str, Any] | None:
        """A document; None when there is none. Raises LocalFault when it is none of ours."""
        path = self.path / name
        try:
            with path.open("rb") as file:
                data = file.read(DOCUMENT_BYTES_MAX + 1)
            found = json.loads(data) if len(data) <= DOCUMENT_BYTES_MAX else None
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise LocalFault(f"{path} cannot be read: {error}") from error
        if len(data) > DOCUMENT_BYTES_MAX:
            raise LocalFault(f"{path} is no document of a run: it has more than {DOCUMENT_BYTES_MAX} bytes")
        if not isinstance(found, dict):
            raise LocalFault(f"{path} is no document of a run")
        return found

    @contextmanager
    def taking(self, name: str) -> Iterator[None]:
        """While parts of a document are taken that was read. Raises LocalFault, which names it, for one that is not
        there or not as it was written."""
        try:
            yield
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise LocalFault(f"{self.path / name} is not as a run leaves it: {error!r}") from error

    def write(self, name: str, document: object) -> None:
        """Put a document in its place, whole or not at all."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        with draft.open("w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)

    def forget(self, name: str) -> None:
        """There is no such document any more."""
        (self.path / name).unlink(missing_ok=True)

    def waves(self) -> list[Wave]:
        """All that are done, in order."""
        found = []
        for path in sorted((self.path / "work").glob("[0-9]*.json")):
            raw = self.read(f"work/{path.name}")
            assert raw is not None
            try:
                done = tuple(_done(row) for row in raw["done"])
                found.append(Wave(int(raw["number"]), str(raw["look"]), int(raw["at_ms"]), done))
            except (KeyError, TypeError, ValueError) as error:
                raise LocalFault(f"{path} is no wave of a run: {error!r}") from error
        return found

    def finished(self, wave: Wave) -> None:
        """A wave is done; its rows are there."""
        self.write(f"work/{wave.number:05}.json", wave._asdict())

    def rows_of(self, number: int) -> str:
        """Where the rows of a wave are."""
        return str(self.path / "work" / f"{number:05}")


class RunProgress(NamedTuple):
    """How far a run is: of each chunk the newest look that read it, with its wave, and the newest trouble of those that
    none did. `number`: of the next wave."""

    first: dict[int, tuple[int, ChunkResult]]
    second: dict[int, tuple[int, ChunkResult]]
    trouble: dict[int, str]
    looked_at_ms: int
    number: int


def standing(waves: Iterable[Wave]) -> RunProgress:
    """What waves say together."""
    found = RunProgress({}, {}, {}, 0, 0)
    looked_at_ms, number = 0, 0
    for wave in waves:
        number = max(number, wave.number + 1)
        into = found.first if wave.look == FIRST else found.second
        for done in wave.done:
            told = wave.look == SECOND and bool(done.candidates or done.filtered)  # its rows say `unreachable`
            if not done.error or (told and done.chunk not in found.second):
                into[done.chunk] = (wave.number, done)
            if done.error:
                found.trouble[done.chunk] = done.error
            else:
                found.trouble.pop(done.chunk, None)
        if wave.look == FIRST:
            looked_at_ms = max(looked_at_ms, wave.at_ms)
    return found._replace(looked_at_ms=looked_at_ms, number=number)


def runs_of(segments: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending segments as ranges [first, end)."""
    found: list[tuple[int, int]] = []
    for segment in segments:
        if found and found[-1][1] == segment:
            found[-1] = (found[-1][0], segment + 1)
        else:
            found.append((segment, segment + 1))
    return found


def known_runs(output: str, kind: str = RUN) -> list[RunDirectory]:
    """The runs of a kind under an output directory."""
    return [
        RunDirectory(output, path.name.partition("=")[2], kind)
        for path in sorted(Path(output).glob(f"{kind}=*"))
        if RUN_ID.match(path.name.partition("=")[2])
    ]
