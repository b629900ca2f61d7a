"""Repair findings: make a plan, then enqueue references, repeatedly if needed.

    plan    the findings of a run that one cluster can send: objects, bytes, direction, expected siblings, time
    apply   enqueue the plan: batches of references at fold priority, one after the other

A plan names the cluster that sends and the one that lacks the objects; an apply checks that the queue is of the first
and owned by the second. References are in the memory of the node that took them. Those that a crash lost or an operator
cleared are among the queue's gaps until full-sync closes them: a plan whose references may be among them starts again.

The object is read from its leader when the reference is served, and the other cluster merges it by its clock, so a
reference that is sent twice or late does no harm. A batch is recorded once the queue has taken it: a killed apply
resumes behind it. A full queue, or a rate, slows it down. Only `diverged` keys are repaired, but not `corrupt` ones:
their clocks do not show which side is right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from time import monotonic, sleep, time
from typing import Any, Final, NamedTuple, Protocol

from xxhash import xxh64_hexdigest

from isthmus.aae.reconcile.findings import read_findings
from isthmus.aae.run_directory import RunDirectory
from isthmus.repl.model.errors import BadInput, Overloaded

BATCH: Final = 500
"""References per request."""

RATE_DEFAULT: Final = 1_000
"""Default rate of references per second: a sink of one node applies more."""

FULL_REST_S: Final = 1.0
FULL_RESTS_MAX: Final = 600
"""Pauses at a full queue before an apply gives up with Overloaded."""

LEFT_TO_RIGHT: Final = "left-to-right"
RIGHT_TO_LEFT: Final = "right-to-left"

_LACKING: Final = {LEFT_TO_RIGHT: ("sink", "both"), RIGHT_TO_LEFT: ("source", "both")}
_COLUMNS: Final = (
    "bucket_type", "bucket", "key", "difference", "side", "left_size", "right_size", "left_siblings", "right_siblings"
)  # fmt: skip


DONE: Final = "done"
ALREADY_DONE: Final = "already-done"
NOTHING: Final = "nothing-to-queue"
LOST: Final = "references-lost"
"""States at the end of an apply besides `done`: an earlier apply queued all of it and nothing is known to be lost; the
plan has no objects; references were given up meanwhile, so it has to be applied again."""


class Queue(Protocol):
    """A queue of the sending cluster that accepts references."""

    def check(self, sender: str, receiver: str) -> int:
        """Wall clock (ms) of the queue's cluster. Raises BadInput unless that is `sender` (a uuid in hexadecimal) and
        `receiver`, and no other cluster, fetches from the queue."""

    def lost(self, since_ms: int) -> list[str]:
        """Descriptions of the references at fold priority that the queue lost since `since_ms`, and that
        full-sync has not closed. Losses of a crashed node are known once it is back, or half a minute later."""

    def push(self, bucket_type: bytes, names: list[tuple[bytes, bytes]]) -> int:
        """Enqueue references to (bucket, key) at fold priority; returns how many of the first ones were taken."""


class RepairKey(NamedTuple):
    """A key that one cluster is to send."""

    bucket_type: str
    bucket: bytes
    key: bytes
    difference: str
    size_bytes: int | None
    siblings: int


def plan(directory: RunDirectory, queue: str, direction: str, rate: int = RATE_DEFAULT) -> dict[str, Any]:
    """Make the plan of a repair, deterministic for the same findings, and write it into the run. Raises BadInput."""
    summary = directory.read("summary.json")
    if summary is None:
        raise BadInput(f"run {directory.run_id} has not ended: let `isthmus reconcile run` with its id finish first")
    if direction not in _LACKING or rate < 1:
        raise BadInput(f"direction is {LEFT_TO_RIGHT} or {RIGHT_TO_LEFT}, the rate at least 1 a second")
    kinds: Counter[str] = Counter()
    size, sized, siblings = 0, 0, 0
    for one in wanted(directory, direction):
        kinds[one.difference] += 1
        siblings += one.difference == "concurrent"
        if one.size_bytes is not None:
            size += one.size_bytes
            sized += 1
    objects = kinds.total()
    sender, receiver = clusters_of(directory, direction)
    with directory.decoding("summary.json"):
        name, cut = _named(summary, queue, direction, rate), summary["findings_cut"]
    about = "" if sized else "the run did not read sizes (it asked trees); --full does"
    found = {
        "plan": name,
        "run": directory.run_id,
        "queue": queue,
        "direction": direction,
        "sending_cluster": sender,
        "receiving_cluster": receiver,
        "objects": objects,
        "differences": dict(kinds),
        "bytes": round(size * objects / sized) if sized else None if objects else 0,
        "bytes_known_of": sized,
        "bytes_reason": about if objects else "",
        "expected_siblings": siblings,
        "rate_per_second": rate,
        "seconds": round(objects / rate, 1),
        "left_alone": _left_alone(directory, direction),
        "findings_cut": cut,
    }
    directory.write(f"repairs/{found['plan']}.json", found)
    if directory.read(_progress(found["plan"])) is None:
        directory.write(_progress(found["plan"]), {"queued": 0, "refused": 0, "state": "planned", "at_ms": _now_ms()})
    return found


def apply(
    directory: RunDirectory,
    plan_id: str,
    queue: Queue,
    progress: Callable[[int, int], None] | None = None,
    *,
    again: bool = False,
) -> dict[str, Any]:
    """Apply a plan, or the rest of it; `again`: all of it, even what was queued before.

    Returns the progress at the end, with `queued_now` (references that this call queued), `lost` (earlier references
    that the queue lost) and `state`. Raises BadInput for an unknown plan and for a queue of another cluster, Overloaded
    if the queue is full for minutes, and the errors of `queue`. References that were accepted are recorded first."""
    made = directory.read(f"repairs/{plan_id}.json")
    if made is None:
        raise BadInput(
            f"run {directory.run_id} has no plan {plan_id}: `isthmus reconcile repair` RUN-ID plan makes one"
        )
    _check_findings(directory, made)
    before = _progress_of(directory, plan_id)
    if not made["objects"]:
        return {**made, "queued": 0, "queued_now": 0, "lost": [], "state": NOTHING}
    now_ms = queue.check(*clusters_of(directory, made["direction"]))
    began_ms = before["began_ms"]
    lost = [] if began_ms is None else queue.lost(began_ms)
    begin_at = 0 if again or lost or began_ms is None else before["queued"]
    if begin_at == 0:
        began_ms = now_ms
    elif before["state"] == DONE:
        return {**made, "queued": begin_at, "queued_now": 0, "lost": [], "state": ALREADY_DONE}
    done, began_s = begin_at, monotonic()
    rate = int(made["rate_per_second"])

    def note(state: str) -> None:
        document = {"queued": done, "state": state, "at_ms": _now_ms(), "began_ms": began_ms}
        directory.write(_progress(plan_id), document)

    for batch in _planned(directory, made, done):
        names = [(one.bucket, one.key) for one in batch]
        note("running")  # before the first reference is pushed: references pushed after `began_ms` may be lost
        _pushed(queue, batch[0].bucket_type.encode(), names)
        done += len(batch)
        note("running")
        if progress is not None:
            progress(done, made["objects"])
        ahead_s = began_s + (done - begin_at) / rate - monotonic()
        if ahead_s > 0 and done < made["objects"]:
            sleep(ahead_s)
    meanwhile = queue.lost(began_ms)
    state = LOST if meanwhile else DONE
    note(state)
    lost += meanwhile
    return {**made, "queued": done, "queued_now": done - begin_at, "lost": lost, "state": state}


def clusters_of(directory: RunDirectory, direction: str) -> tuple[str, str]:
    """The uuids of the sending and of the receiving cluster, in hexadecimal. Raises BadInput."""
    summary = directory.read("summary.json") or {}
    with directory.decoding("summary.json"):
        clusters = summary["clusters"]
        if clusters is None:
            raise BadInput(f"run {directory.run_id} did not find out which clusters it compared: run it again")
        left, right = map(str, clusters)
    return (left, right) if direction == LEFT_TO_RIGHT else (right, left)


def _check_findings(directory: RunDirectory, made: Mapping[str, Any]) -> None:
    """Raises BadInput unless the findings are those that were planned: rewriting them removes the summary."""
    summary = directory.read("summary.json")
    with directory.decoding("summary.json"):
        named = summary and _named(summary, made["queue"], made["direction"], int(made["rate_per_second"]))
    if named != made["plan"]:
        raise BadInput(
            f"run {directory.run_id} was resumed after plan {made['plan']}, and found other keys: make a new plan"
        )


def _planned(directory: RunDirectory, made: Mapping[str, Any], behind: int) -> Iterator[list[RepairKey]]:
    """The batches of a plan, without the first `behind` keys. Raises BadInput if the run is resumed meanwhile."""
    try:
        for batch in _batches(wanted(directory, made["direction"]), behind):
            _check_findings(directory, made)
            yield batch
    except OSError:
        _check_findings(directory, made)  # a resumed run removes the files of its findings
        raise


def wanted(directory: RunDirectory, direction: str) -> Iterator[RepairKey]:
    """The keys that a cluster is to send, in an order that never changes: findings are written once and read file by
    file."""
    side = direction.partition("-")[0]
    for row in read_findings(directory.path / "findings", _COLUMNS, "diverged"):
        if row["difference"] == "corrupt" or row["side"] not in _LACKING[direction]:
            continue
        siblings = (row["left_siblings"] or 1) + (row["right_siblings"] or 1)
        yield RepairKey(
            row["bucket_type"], row["bucket"], row["key"], row["difference"], row[f"{side}_size"], siblings
        )  # fmt: skip


def repairs_of(directory: RunDirectory) -> list[dict[str, Any]]:
    """The plans of a run, each with its progress."""
    found = []
    for path in sorted((directory.path / "repairs").glob("*.json")):
        if path.name.endswith(".progress.json"):
            continue
        made = directory.read(f"repairs/{path.name}")
        assert made is not None
        found.append({**made, **_progress_of(directory, path.name.removesuffix(".json"))})
    return found


def _progress_of(directory: RunDirectory, plan_id: str) -> dict[str, Any]:
    """Progress of a plan; without a document, as after a kill while the plan was made, nothing was queued."""
    name = _progress(plan_id)
    progress = directory.read(name)
    if progress is None:
        progress = {"queued": 0, "state": "planned"}
    with directory.decoding(name):
        began_ms = progress.get("began_ms")  # by the sending cluster's clock; None: not known
        return {
            "queued": int(progress["queued"]), "state": str(progress["state"]), "at_ms": progress.get("at_ms"),
            "began_ms": None if began_ms is None else int(began_ms),
        }  # fmt: skip


def _left_alone(directory: RunDirectory, direction: str) -> dict[str, int]:
    """{reason: number of diverged keys that the plan does not include}."""
    found: Counter[str] = Counter()
    for row in read_findings(directory.path / "findings", ("difference", "side"), "diverged"):
        if row["difference"] == "corrupt":
            found["corrupt: no clock shows which side is right"] += 1
        elif row["side"] not in _LACKING[direction]:
            found["ahead on the other side"] += 1
    return dict(found)


def _pushed(queue: Queue, bucket_type: bytes, names: list[tuple[bytes, bytes]]) -> None:
    rests = 0
    while names:
        taken = queue.push(bucket_type, names)
        names = names[taken:]
        if not names:
            return
        if taken:
            rests = 0
            continue
        rests += 1
        if rests > FULL_RESTS_MAX:
            raise Overloaded(
                "the queue accepts no references: does its owner fetch? Applying this plan later resumes it"
            )
        sleep(FULL_REST_S)


def _batches(every: Iterator[RepairKey], behind: int) -> Iterator[list[RepairKey]]:
    """Batches of one bucket type each, without the first `behind` keys."""
    batch: list[RepairKey] = []
    for number, one in enumerate(every):
        if number < behind:
            continue
        batch.append(one)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _named(summary: Mapping[str, Any], queue: str, direction: str, rate: int) -> str:
    """The id of a plan: it changes when the run is resumed, which rewrites the findings."""
    return xxh64_hexdigest(f"{queue} {direction} {rate} {summary['verdicts']} {summary['seconds']}".encode())


def _progress(plan_id: str) -> str:
    return f"repairs/{plan_id}.progress.json"


def _now_ms() -> int:
    return int(time() * 1000)
