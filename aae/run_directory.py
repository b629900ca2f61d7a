"""The directory of a run: its options, its progress, its results, and the manifests of reads. Free of Spark.

    OUTPUT/run_id=ID/
      run.json            what is compared, with what; a run id belongs to one comparison
      plan.json           trees or everything, as of when, and the chunks of segments
      work/NNNN.json      a finished wave of chunks; its rows (Parquet) are in NNNN/
      findings/           one row per differing key (Parquet, by verdict)
      segments/           one row per chunk
      summary.json        totals, never truncated; missing while the findings are rewritten
      progress.json       the stage of the newest attempt, and how far it is (`ProgressFile`)
      repairs/            repair plans, and how far each is applied (`repair`)
      spark.log           what Spark wrote during the newest attempt, if it was started by the command line

Every document is written atomically, a wave's after its rows: a killed run resumes after the last one. A manifest says
what a read of `row_reader` was as of: one document for its plan and one per range.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import time
from typing import Any, Final, NamedTuple

from xxhash import xxh64_intdigest

from isthmus.repl.model.errors import BadInput, LocalFault

RUN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")

RUN: Final = "run_id"
SEED: Final = "seed_id"
IMPORT: Final = "import_id"
"""Kinds of runs, and prefixes of their directories' names: a comparison, a seed (`seed`), an import (`export`)."""

FIRST: Final = "first"
SECOND: Final = "second"

FORM: Final = 1
"""Version of the documents."""

DOCUMENT_BYTES_MAX: Final = 256 * 1024 * 1024
"""Largest document that is read: a plan names each range, some megabytes for a cluster of 10^9 objects."""


def program_version() -> str:
    """Version of the installed package; "unknown" if it is not installed."""
    try:
        return version("isthmus")
    except PackageNotFoundError:
        return "unknown"


SPARK_LOG: Final = "spark.log"


class SegmentChunk(NamedTuple):
    """The unit of work: ranges [first, end) of segments."""

    number: int
    runs: tuple[tuple[int, int], ...]

    @property
    def segments(self) -> int:
        """Number of segments."""
        return sum(end - first for first, end in self.runs)


class ChunkResult(NamedTuple):
    """Counts of one look at a chunk. `error`: it could not be read, and the counts are void."""

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
    waiting: int = 0


def _done(row: Sequence[Any]) -> ChunkResult:
    """Decode a row of a wave's document. Raises TypeError, ValueError."""
    found = ChunkResult(*row)
    chunk, error, *counts = found
    if type(error) is not str or any(type(one) is not int or one < 0 for one in (chunk, *counts)):
        raise ValueError(f"{row!r:.200} is not the result of a chunk: its number, an error or '', and counts from 0")
    return found


class Wave(NamedTuple):
    """Chunks that were compared together; `at_ms`: end of the wave."""

    number: int
    look: str
    at_ms: int
    done: tuple[ChunkResult, ...]


class RunDirectory:
    """One run under an output directory, which the driver and all workers reach at the same path."""

    def __init__(self, output: str, run_id: str, kind: str = RUN) -> None:
        if not RUN_ID.match(run_id):
            raise BadInput(f"run id {run_id!r}: letters, digits, dots, dashes and underscores are right, at most 100")
        self.run_id = run_id
        self.path = Path(output).absolute() / f"{kind}={run_id}"

    def open(self, wanted: dict[str, Any]) -> bool:
        """Create the run or resume it; returns True if it existed. Raises BadInput if it was about something else."""
        known = self.read("run.json")
        asked: dict[str, Any] = {"form": FORM, **wanted}
        if known is None:
            self.write("run.json", asked)
            return False
        differing = sorted(name for name in known.keys() | asked.keys() if known.get(name) != asked.get(name))
        if differing:
            raise BadInput(
                f"run {self.run_id} exists with different {', '.join(differing)}: take another --run-id, or the same "
                "options"
            )
        return True

    def options_hash(self) -> str:
        """Hash of the options that identify the comparison, in hexadecimal; "" before they are written."""
        known = self.read("run.json")
        return "" if known is None else f"{xxh64_intdigest(json.dumps(known, sort_keys=True).encode()):016x}"

    def read(self, name: str) -> dict[str, Any] | None:
        """A document; None if there is none. Raises LocalFault for an invalid one."""
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
            raise LocalFault(f"{path} is not a valid document of a run: it has more than {DOCUMENT_BYTES_MAX} bytes")
        if not isinstance(found, dict):
            raise LocalFault(f"{path} is not a valid document of a run: it is not a JSON object")
        return found

    @contextmanager
    def decoding(self, name: str) -> Iterator[None]:
        """Context in which parts of a document are decoded: invalid parts raise LocalFault with its path."""
        try:
            yield
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise LocalFault(f"{self.path / name} is not a valid document of a run: {error!r}") from error

    def write(self, name: str, document: object) -> None:
        """Write a document atomically and durably."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        with draft.open("w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)

    def remove(self, name: str) -> None:
        """Remove a document."""
        (self.path / name).unlink(missing_ok=True)

    def waves(self) -> list[Wave]:
        """All finished waves, in order."""
        found = []
        for path in sorted((self.path / "work").glob("[0-9]*.json")):
            raw = self.read(f"work/{path.name}")
            assert raw is not None
            try:
                done = tuple(_done(row) for row in raw["done"])
                found.append(Wave(int(raw["number"]), str(raw["look"]), int(raw["at_ms"]), done))
            except (KeyError, TypeError, ValueError) as error:
                raise LocalFault(f"{path} is not a valid wave of a run: {error!r}") from error
        return found

    def add_wave(self, wave: Wave) -> None:
        """Record a finished wave, whose rows are written."""
        self.write(f"work/{wave.number:05}.json", wave._asdict())

    def rows_of(self, number: int) -> str:
        """Path of a wave's rows."""
        return str(self.path / "work" / f"{number:05}")


class RunProgress(NamedTuple):
    """Progress of a run: for each chunk its newest successful look and that look's wave; for others the newest error.
    `number`: number of the next wave."""

    first: dict[int, tuple[int, ChunkResult]]
    second: dict[int, tuple[int, ChunkResult]]
    failures: dict[int, str]
    looked_at_ms: int
    number: int


def standing(waves: Iterable[Wave]) -> RunProgress:
    """The progress after these waves."""
    found = RunProgress({}, {}, {}, 0, 0)
    looked_at_ms, number = 0, 0
    for wave in waves:
        number = max(number, wave.number + 1)
        into = found.first if wave.look == FIRST else found.second
        for done in wave.done:
            recorded = wave.look == SECOND and bool(done.candidates or done.filtered)  # its rows say `unreachable`
            if not done.error or (recorded and done.chunk not in found.second):
                into[done.chunk] = (wave.number, done)
            if done.error:
                found.failures[done.chunk] = done.error
            else:
                found.failures.pop(done.chunk, None)
        if wave.look == FIRST:
            looked_at_ms = max(looked_at_ms, wave.at_ms)
    return found._replace(looked_at_ms=looked_at_ms, number=number)


BEGUN: Final = "begun"
ENDED: Final = "ended"
INTERRUPTED: Final = "interrupted"
"""Stages of any attempt: its first, and one of the others at its end, unless its process was killed."""

PROGRESS: Final = "progress.json"


class ProgressFile:
    """The progress of one attempt, for readers of the directory: a small document that is replaced after each wave.

    `counts`: numbers so far by name, such as verdicts; `left_s`: estimated seconds until the stage ends, None if
    unknown. A killed process leaves the last stage, whose `at_ms` becomes old."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._began_ms = int(time() * 1000)
        self.clusters: list[str] = []
        """Names of both clusters, once they are known."""
        self._newest: dict[str, Any] = {"done": 0, "of": 0, "left_s": None, "counts": {}}

    def note(
        self,
        stage: str,
        done: int = 0,
        of: int = 0,
        left_s: float | None = None,
        counts: Mapping[str, int] | None = None,
    ) -> None:
        """Write the stage, of which `done` of `of` parts are done (0 of 0: it has none). `counts` None: as before."""
        kept: Mapping[str, int] = self._newest["counts"] if counts is None else counts
        left = None if left_s is None else round(left_s, 1)
        self._newest = {"done": done, "of": of, "left_s": left, "counts": dict(kept)}
        self._write(stage, "")

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Note the begin and the end of an attempt, also of one that an error or a signal ends."""
        self._write(BEGUN, "")
        try:
            yield
        except BaseException as error:
            self._newest["left_s"] = None
            self._write(INTERRUPTED, ": ".join(filter(None, (type(error).__name__, str(error))))[:500])
            raise
        self._newest["left_s"] = None
        self._write(ENDED, "")

    def _write(self, stage: str, reason: str) -> None:
        now_ms = int(time() * 1000)
        document = {"form": FORM, "stage": stage, "began_ms": self._began_ms, "at_ms": now_ms, "reason": reason}
        self._directory.write(PROGRESS, {**document, "clusters": self.clusters, **self._newest})


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


class ReadRange(NamedTuple):
    """A range that a task read from one node: rows of the segments [first, end) behind `after` (hexadecimal; "": none).

    The rows include every change below `offset`. `whole`: the range was read to its end."""

    partition: int
    first: int
    end: int
    after: str
    node: str
    epoch: int
    offset: int
    rows: int
    whole: bool


def write_json(directory: Path, name: str, document: object) -> None:
    """Write a document of a manifest atomically."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    scratch = path.with_name(f".{name}.{os.getpid()}")
    scratch.write_text(json.dumps(document), encoding="utf-8")
    scratch.replace(path)


def read_manifest(directory: Path) -> tuple[list[ReadRange], list[tuple[int, int, int]]]:
    """(ranges read, ranges (partition, first, end) missing) of the newest action on a table with the option `manifest`;
    ranges are missing while the action runs, or after it failed. A range that the action read several times (a table
    joined with itself) is listed each time. Earlier actions have their own directories, `DIR/read=.../action=...`.
    Raises BadInput without a manifest."""
    known = (directory, *directory.glob("read=*"), *directory.glob("**/action=*"))
    actions = [path for path in known if _documents(path)]
    if actions:
        directory = max(actions, key=_newest_ns)
    elif plans := list(directory.glob("read=*/plan.json")):
        directory = max(plans, key=lambda path: path.stat().st_mtime_ns).parent
    home = directory.parent if directory.name.startswith("action=") else directory
    if not (home / "plan.json").exists():
        raise BadInput(f"{directory} has no manifest of a read")
    plan = json.loads((home / "plan.json").read_text(encoding="utf-8"))
    documents = _documents(directory)
    pieces: list[ReadRange] = []
    missing: list[tuple[int, int, int]] = []
    for partition, first, end in plan["ranges"]:
        found = [path for path in documents if path.name.startswith(f"range-{partition}-{first}-{end}.")]
        for path in found:
            pieces += [ReadRange(**raw) for raw in json.loads(path.read_text(encoding="utf-8"))["pieces"]]
        if not found:
            missing.append((partition, first, end))
    return pieces, missing


def _documents(directory: Path) -> list[Path]:
    """The documents that the tasks of an action wrote."""
    return sorted(directory.glob("range-*.json"))


def _newest_ns(directory: Path) -> int:
    return max(path.stat().st_mtime_ns for path in _documents(directory))
