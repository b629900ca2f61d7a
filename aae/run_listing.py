"""The runs of a directory for a node's listing: from small documents, whose sizes are bounded. Free of Spark.

A directory may be written to while it is read, or be damaged, or have files of others: a run whose documents cannot be
read is listed as `unreadable`, with the reason. Findings (Parquet), plans and waves are never read: the state of a run
is in `run.json`, `progress.json` and `summary.json`. Blocks; for a thread of its own.

    state        meaning
    ended        it has a summary, which has the outcome
    running      its progress is younger than QUIET_MS
    quiet        its progress is older: its driver was perhaps killed, or waits for a slow part
    interrupted  an error or a signal ended its newest attempt
    unknown      it has neither progress nor summary: it has just begun, or is of an earlier version
    unreadable   a document is damaged
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import msgspec

from isthmus.aae.run_directory import ENDED, IMPORT, INTERRUPTED, PROGRESS, RUN, RUN_ID, SEED
from isthmus.repl.model.errors import LocalFault

RUNS_MAX: Final = 200
"""Runs of a listing, the newest ones; others are counted. Each costs three small files."""

ENTRIES_MAX: Final = 10_000
"""Entries of the directory that are looked at; what is beyond them is not listed, and the answer says so. A directory
of runs has hundreds; a wrong one, such as a mail spool, may have millions."""

SMALL_BYTES: Final = 64 * 1024
"""Largest options, addresses, progress, and documents of repairs: some kilobytes with the longest names."""

SUMMARY_BYTES: Final = 2 * 1024 * 1024
"""Largest summary and hand-over: a thousand ranges of segments, a hundred groups of findings with long bucket names,
and the positions of thousands of partitions."""

REPAIRS_MAX: Final = 50
"""Repair plans of a run that are shown."""

QUIET_MS: Final = 10 * 60 * 1000
"""Age of a progress from which a run counts as quiet. A wave takes some ten seconds, with slow nodes some minutes; a
guess."""

TEXT_CHARS_MAX: Final = 2_000
"""Longest text that is passed on."""

NAME_CHARS_MAX: Final = 100
"""The same of a cluster's name; names have 64 characters at most."""

LIST_MAX: Final = 50
"""Most items of a list that are passed on; the number of all of them goes with it."""


class RunKind(StrEnum):
    """Kinds of runs that keep a directory."""

    COMPARISON = "comparison"
    SEED = "seed"
    IMPORT = "import"


PREFIXES: Final[Mapping[RunKind, str]] = {RunKind.COMPARISON: RUN, RunKind.SEED: SEED, RunKind.IMPORT: IMPORT}


class RunState(StrEnum):
    """See the module."""

    ENDED = "ended"
    RUNNING = "running"
    QUIET = "quiet"
    INTERRUPTED = "interrupted"
    UNKNOWN = "unknown"
    UNREADABLE = "unreadable"


TimeMs = Annotated[int, msgspec.Meta(ge=0, le=253_402_300_799_999)]
"""A time up to the year 9999, which has a date."""


class Options(msgspec.Struct):
    """run.json; of a seed `source` and `target` are URLs."""

    bucket_type: str = ""
    bucket: str = ""
    """In hexadecimal in a comparison, as text in an import."""
    modified_since_ms: TimeMs = 0
    modified_before_ms: TimeMs = 0
    full: bool = False
    bodies: bool = False
    sample: float = 1.0
    settle_s: float = 0.0
    max_differences: int = 0
    filter: str = ""
    source: str = ""
    target: str = ""
    queue: str = ""
    path: str = ""
    urls: str = ""
    prefix: str = ""
    modified_since: str = ""
    modified_before: str = ""
    """Set by an import alone, as on its command line."""


class Urls(msgspec.Struct):
    """urls.json."""

    left: str = ""
    right: str = ""


class Progress(msgspec.Struct):
    """progress.json, see `run_directory.ProgressFile`."""

    stage: str
    began_ms: int
    at_ms: int
    done: int = 0
    of: int = 0
    left_s: float | None = None
    counts: dict[str, int] = {}
    clusters: list[str] = []
    reason: str = ""


class Side(msgspec.Struct):
    """A cluster in `as_of`."""

    cluster: str


class AsOf(msgspec.Struct):
    """The states of the clusters that a comparison read; only the names are used."""

    begin: list[Side | None] = []


class Groups(msgspec.Struct):
    """The largest groups of findings, see `findings.summarized`."""

    groups: list[dict[str, str | int | None]] = []
    groups_left: int = 0
    findings_left: int = 0


class Coverage(msgspec.Struct):
    """How much a comparison covered."""

    segments: int
    of: int
    read: int
    chunks_done: int
    chunks: int


class Verified(msgspec.Struct):
    """The comparison at the end of a seed."""

    run_id: str
    outcome: str


class RunSummary(msgspec.Struct):
    """summary.json of a comparison or a seed; what one of them lacks has its default."""

    outcome: str
    error: str = ""
    seconds: float | None = None
    at_ms: int | None = None
    version: str = ""
    bytes: int | None = None
    mode: str | None = None
    why: str | None = None
    clusters: list[str] | None = None
    keys: int | None = None
    verdicts: dict[str, int] = {}
    left_rows: int | None = None
    right_rows: int | None = None
    findings_cut: bool = False
    findings: Groups | None = None
    coverage: Coverage | None = None
    segments_open: list[tuple[int, int]] = []
    segments_open_ranges: int = 0
    reasons: list[str] = []
    as_of: AsOf | None = None
    source: str = ""
    target: str = ""
    objects: int | None = None
    outcomes: dict[str, int] = {}
    damaged: int = 0
    named: list[str] = []
    chunks: dict[str, int] = {}
    queue: str = ""
    queue_state: str | None = None
    verified: Verified | None = None


class RepairPlan(msgspec.Struct):
    """A repair plan of a comparison."""

    plan: str
    queue: str
    direction: str
    objects: int
    bytes: int | None = None
    differences: dict[str, int] = {}
    left_alone: dict[str, int] = {}
    expected_siblings: int = 0
    rate_per_second: int = 0
    seconds: float = 0.0


class RepairProgress(msgspec.Struct):
    """How far a repair plan is applied."""

    queued: int
    state: str
    at_ms: int | None = None


class SeedQueue(msgspec.Struct):
    """The queue of a seed."""

    queue: str
    state: str


D = TypeVar("D")


class Damaged(Exception):
    """A document that cannot be read; the text names it and the reason."""


class RunDocuments(NamedTuple):
    """The documents of one run; None: there is none. `started_ms`: when run.json was written, by the file system."""

    options: Options | None
    urls: Urls | None
    progress: Progress | None
    summary: RunSummary | None
    started_ms: int | None
    ended_ms: int | None


class RunListing(NamedTuple):
    """The runs of a directory, the newest first. `left_out`: older ones; `cut`: the directory has more entries than are
    looked at."""

    runs: list[dict[str, Any]]
    left_out: int
    cut: bool


def list_runs(directory: Path, now_ms: int) -> RunListing:
    """The runs of a directory. Raises LocalFault if it cannot be read."""
    found: list[tuple[int, RunKind, str]] = []
    cut = False
    try:
        with os.scandir(directory) as entries:
            for number, entry in enumerate(entries):
                if number >= ENTRIES_MAX:
                    cut = True
                    break
                kind, run_id = _named(entry.name)
                with suppress(OSError):  # it is removed meanwhile
                    if kind is not None and entry.is_dir():
                        found.append((entry.stat().st_mtime_ns, kind, run_id))
    except OSError as error:
        raise LocalFault(f"{directory} cannot be read: {error.strerror or error}") from error
    found.sort(reverse=True)
    return RunListing([_row(directory, kind, run_id, now_ms) for _, kind, run_id in found[:RUNS_MAX]],
                   max(0, len(found) - RUNS_MAX), cut)  # fmt: skip


def show_run(directory: Path, kind: RunKind, run_id: str, now_ms: int) -> dict[str, Any] | None:
    """One run: its row, its documents as far as they can be read, what is wrong with the others (`problems`), and
    commands to type. None if there is none of that name."""
    path = _path(directory, kind, run_id)
    if not RUN_ID.match(run_id) or not path.is_dir():
        return None
    files = _RunFiles(path)
    options = files.read("run.json", Options)
    urls = files.read("urls.json", Urls)
    files.read(PROGRESS, Progress)  # for its problem; the row has what it says
    summary = files.read("summary.json", RunSummary, SUMMARY_BYTES)
    queue = files.read("handover.json", SeedQueue, SUMMARY_BYTES)
    repairs, more = _repairs(files)
    row = _row(directory, kind, run_id, now_ms)
    return {
        **row,
        "directory": str(directory),
        "options": None if options is None else msgspec.to_builtins(options),
        "summary": None if summary is None else _shown_summary(summary),
        "hand_over": None if queue is None else msgspec.to_builtins(queue),
        "repairs": repairs,
        "repairs_left": more,
        "problems": files.problems,
        "commands": list(_commands(row, str(directory), options, urls, summary, repairs)),
    }


def _shown_summary(summary: RunSummary) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(summary)
    for name in ("segments_open", "reasons", "named"):
        shown[f"{name}_count"] = len(shown[name])
        shown[name] = shown[name][:LIST_MAX]
    shown["segments_open_count"] = max(summary.segments_open_ranges, len(summary.segments_open))
    for name in ("error", "why"):
        shown[name] = shown[name] and shown[name][:TEXT_CHARS_MAX]
    for name in ("reasons", "named"):
        shown[name] = [text[:TEXT_CHARS_MAX] for text in shown[name]]
    return shown


def _named(name: str) -> tuple[RunKind | None, str]:
    prefix, equals, run_id = name.partition("=")
    kind = next((kind for kind, known in PREFIXES.items() if known == prefix), None)
    return (kind, run_id) if equals and RUN_ID.match(run_id) else (None, "")


def _path(directory: Path, kind: RunKind, run_id: str) -> Path:
    return directory / f"{PREFIXES[kind]}={run_id}"


def _row(directory: Path, kind: RunKind, run_id: str, now_ms: int) -> dict[str, Any]:
    """A run in a listing."""
    row: dict[str, Any] = {"kind": kind.value, "run": run_id}
    try:
        documents = _documents(_path(directory, kind, run_id))
    except Damaged as error:
        started_ms = _written_ms(_path(directory, kind, run_id) / "run.json")
        return {**row, **_EMPTY, "state": RunState.UNREADABLE.value, "reason": str(error), "started_ms": started_ms}
    options, urls, progress, summary, started_ms, ended_ms = documents
    state, reason = state_of(progress, summary, now_ms)
    over = state is RunState.ENDED
    outcome = None if summary is None else summary.outcome
    if over and summary is None:
        outcome = "imported" if kind is RunKind.IMPORT else None
    return {
        **row,
        **_EMPTY,
        "state": state.value,
        "reason": reason,
        "clusters": _clusters(progress, summary),
        "urls": _sides(options, urls),
        "bucket_type": options.bucket_type if options is not None and options.bucket_type else None,
        "started_ms": started_ms,
        "ended_ms": ended_ms if over else None,
        "seconds": None if summary is None else summary.seconds,
        "outcome": outcome,
        "error": "" if summary is None else summary.error[:TEXT_CHARS_MAX],
        "counts": _counts(progress, summary, over=over),
        "progress": None
        if progress is None or over
        else {name: getattr(progress, name) for name in ("stage", "began_ms", "at_ms", "done", "of", "left_s")},
    }


_EMPTY: Final[Mapping[str, Any]] = {
    "clusters": [], "urls": [], "bucket_type": None, "started_ms": None, "ended_ms": None, "seconds": None,
    "outcome": None, "error": "", "counts": None, "progress": None,
}  # fmt: skip
"""The values of a run that cannot be read."""


def state_of(progress: Progress | None, summary: RunSummary | None, now_ms: int) -> tuple[RunState, str]:
    """The state of a run, and its reason."""
    if progress is None:
        if summary is not None:
            return RunState.ENDED, ""
        return RunState.UNKNOWN, "it has no progress yet: it has just begun, or is of an earlier version"
    summarized = summary is not None and (summary.at_ms is None or summary.at_ms >= progress.at_ms)
    if progress.stage == ENDED or summarized:
        return RunState.ENDED, ""
    if progress.stage == INTERRUPTED:
        return RunState.INTERRUPTED, progress.reason[:TEXT_CHARS_MAX] or "its newest attempt was interrupted"
    age_ms = now_ms - progress.at_ms
    if age_ms > QUIET_MS:
        minutes = age_ms // 60_000
        return RunState.QUIET, f"no progress for {minutes} minutes: its driver was killed, or a part takes long"
    return RunState.RUNNING, ""


def _clusters(progress: Progress | None, summary: RunSummary | None) -> list[str]:
    """Names of the clusters, as far as they are known."""
    if summary is not None and summary.source:
        found = [summary.source, summary.target]
    elif progress is not None and progress.clusters:
        found = progress.clusters[:2]
    elif summary is not None and summary.as_of is not None:
        found = [side.cluster for side in summary.as_of.begin[:2] if side is not None]
    else:
        found = []
    return [name[:NAME_CHARS_MAX] for name in found]


def _sides(options: Options | None, urls: Urls | None) -> list[str]:
    """URLs of both sides, of an import of its target."""
    if urls is not None:
        found = [urls.left, urls.right]
    else:
        found = [] if options is None else [one for one in (options.source, options.target, options.urls) if one]
    return [one[:TEXT_CHARS_MAX] for one in found]


def _counts(progress: Progress | None, summary: RunSummary | None, *, over: bool) -> dict[str, int] | None:
    """Keys by verdict of a comparison; objects, and what became of them, of a seed or an import; None: unknown."""
    if over and summary is not None:
        if summary.objects is None:
            return summary.verdicts or None
        damaged = {"damaged": summary.damaged} if summary.damaged else {}
        return {"objects": summary.objects, **summary.outcomes, **damaged}
    return None if progress is None else progress.counts or None


def _documents(path: Path) -> RunDocuments:
    """Raises Damaged."""
    return RunDocuments(
        _document(path, "run.json", Options),
        _document(path, "urls.json", Urls),
        progress := _document(path, PROGRESS, Progress),
        summary := _document(path, "summary.json", RunSummary, SUMMARY_BYTES),
        _written_ms(path / "run.json"),
        _ended_ms(path, progress, summary),
    )


def _ended_ms(path: Path, progress: Progress | None, summary: RunSummary | None) -> int | None:
    if summary is not None and summary.at_ms is not None:
        return summary.at_ms
    if progress is not None and progress.stage == ENDED:
        return progress.at_ms
    return _written_ms(path / "summary.json")


def _written_ms(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns // 1_000_000
    except OSError:
        return None


def _document(path: Path, name: str, kind: type[D], limit: int = SMALL_BYTES) -> D | None:
    """A document; None without one. Raises Damaged for one that is too large, no regular file, or of another form."""
    where = f"{path.name}/{name}"
    try:
        descriptor = os.open(path / name, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would wait for its writer
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise Damaged(f"{where} is not a regular file")
            data = file.read(limit + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Damaged(f"{where} cannot be read: {error.strerror or error}") from error
    if len(data) > limit:
        raise Damaged(f"{where} is too large: a document of this kind has at most {limit} bytes")
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise Damaged(f"{where} is damaged, or was written in part: {error}"[:TEXT_CHARS_MAX]) from error


class _RunFiles:
    """The documents of one run. One that cannot be read is left out, with its reason in `problems`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems: list[str] = []

    def read(self, name: str, kind: type[D], limit: int = SMALL_BYTES) -> D | None:
        """A document, if it is there and can be read."""
        try:
            return _document(self.path, name, kind, limit)
        except Damaged as error:
            self.problems.append(str(error))
            return None

    def names(self, folder: str) -> list[str]:
        """Names of a folder's first files; none without it."""
        try:
            with os.scandir(self.path / folder) as entries:
                return [entry.name for entry in islice(entries, ENTRIES_MAX)]
        except FileNotFoundError:
            return []
        except OSError as error:
            self.problems.append(f"{self.path.name}/{folder} cannot be read: {error.strerror or error}")
            return []


def _repairs(files: _RunFiles) -> tuple[list[dict[str, Any]], int]:
    """The repair plans of a comparison with their progress, and how many more there are."""
    documents = [name for name in files.names("repairs") if name.endswith(".json") and not name.startswith(".")]
    plans = sorted(name for name in documents if not name.endswith(".progress.json"))
    rows = []
    for name in plans[:REPAIRS_MAX]:
        made = files.read(f"repairs/{name}", RepairPlan)
        done = files.read(f"repairs/{name.removesuffix('.json')}.progress.json", RepairProgress)
        if made is not None:
            progress = {"queued": None, "state": None, "at_ms": None} if done is None else msgspec.to_builtins(done)
            rows.append({**msgspec.to_builtins(made), **progress})
    return rows, max(0, len(plans) - REPAIRS_MAX)


def _commands(
    row: Mapping[str, Any],
    directory: str,
    options: Options | None,
    urls: Urls | None,
    summary: RunSummary | None,
    repairs: list[dict[str, Any]],
) -> Iterator[dict[str, str]]:
    """Commands that show, continue or repair a run, to be typed where the directory is. None continues one that runs,
    whose driver would meet another one, or one with a damaged document."""

    def command(about: str, *words: str) -> dict[str, str]:
        return {"about": about, "command": " ".join(["isthmus", "reconcile", *map(shlex.quote, words)])}

    if row["state"] == RunState.UNREADABLE:
        return
    kind, run_id = RunKind(row["kind"]), str(row["run"])
    final = row["state"] == RunState.ENDED and row["outcome"] in ("equal", "differ", "copied", "imported")
    goes_on = row["state"] != RunState.RUNNING and not final and options is not None
    place = ("--dir", directory)
    if kind is RunKind.IMPORT:
        if goes_on and options is not None:
            words = ("--url", options.urls, *_import_choice(options), "--run-id", run_id, "--dir", directory)
            yield command("Go on with it; finished slices are not pushed again", "import", options.path, *words)
        return
    if kind is RunKind.SEED:
        yield command("Its progress, and where its queue goes on", "show", run_id, *place)
        if goes_on and options is not None:
            queue = ("--queue", options.queue, "--admin", "URL") if options.queue else ()
            sides = ("--source", options.source, "--target", options.target, "--bucket-type", options.bucket_type)
            words = (*sides, *queue, *place, "--run-id", run_id)
            yield command("Go on with it; finished ranges are not copied again", "seed", *words)
        return
    yield command("Its findings by bucket, and the names of keys that differ", "show", run_id, *place, "--keys", "20")
    if goes_on and options is not None and urls is not None:
        words = ("--left", urls.left, "--right", urls.right, *_choice(options), *place, "--run-id", run_id)
        yield command("Go on with it; what is finished is not repeated", "run", *words)
    if row["state"] == RunState.ENDED and summary is not None and summary.verdicts.get("diverged"):
        plan = ("repair", run_id, "plan", *place, "--queue", "QUEUE")
        yield command("Plan which objects the left cluster sends again, by one of its queues", *plan)
        yield command("The same of the right cluster", *plan, "--to", "left")
        for one in repairs:
            if one["state"] != "done" and one["objects"]:
                sends = "left" if one["direction"] == "left-to-right" else "right"
                words = ("repair", run_id, "apply", *place, "--plan", one["plan"], "--admin", "URL")
                yield command(f"Apply plan {one['plan']}; URL is a node of the {sends} cluster", *words)


def _choice(options: Options) -> Iterator[str]:
    """The options that choose what a comparison compares: a run id belongs to one comparison."""
    if options.bucket_type not in ("", "default"):
        yield from ("--bucket-type", options.bucket_type)
    if options.bucket:
        yield from ("--bucket", f"0x{options.bucket}")
    for name in ("modified_since", "modified_before"):
        at_ms = getattr(options, f"{name}_ms")
        if at_ms:
            at = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
            yield from (f"--{name.replace('_', '-')}", at.replace("+00:00", "Z"))
    if options.filter:
        yield from ("--filter", options.filter)
    yield from ("--settle", f"{round(options.settle_s * 1000)}ms")
    for name in ("full", "bodies"):
        if getattr(options, name):
            yield f"--{name}"
    if options.sample < 1:
        yield from ("--sample", f"{options.sample!r}")
    if options.max_differences:
        yield from ("--max-differences", str(options.max_differences))


def _import_choice(options: Options) -> Iterator[str]:
    """Which objects an import pushes, as options."""
    for name in ("bucket", "prefix", "modified_since", "modified_before"):
        if getattr(options, name):
            yield from (f"--{name.replace('_', '-')}", getattr(options, name))
