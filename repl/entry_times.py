"""What becomes of entries, by bucket type and kind: how long replication and apply took, and what failed.

    replicate    from the append at a leader until it is committed and applied there
    apply        its last part, on every replica: from the word that it is committed until it is in the store
    failures     entries that a leader refused to append, whose leadership ended before they were committed, or whose
                 clients were told that the outcome is unknown, since they were not committed in time

Called by `repl.runtime` once a batch; all entries of a batch count with its longest time. Nothing is decided here.
Names of metrics are `repl.telemetry`'s; what a cluster makes of these numbers is `node.telemetry_view`'s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Final, NamedTuple

from repl.durations import WINDOW_MS, Durations, Recent
from repl.isr.effects import Role
from repl.model.entry import Entry, EntryKind
from repl.partition import Appended, Partition
from repl.telemetry import Sample

LOST: Final = "leadership-lost"
"""Reason of the entries that were appended by a leader which ended before they were committed. Their clients are told
that the outcome is unknown; the next leader may hold them, and commit them."""

TIMED_OUT: Final = "timed-out"
"""Reason of the writes that were answered 504 while their entries were not committed, such as below min-ISR. They may
be committed later, and where leadership ends before that they count as LOST, too."""

COMMITTED_MAX: Final = 1_000
"""Times of commits kept a partition until they are applied; a store that is so far behind counts with older times."""

_KIND_OF: Final = itemgetter(0)

KIND_NAMES: Final = {int(kind): "write" if kind is EntryKind.DATA else kind.name.lower() for kind in EntryKind}
"""EntryKind -> its name in metrics."""


class KindTimes(NamedTuple):
    """One kind's, for those who show it: since the node began, and lately."""

    entries: int
    recent: Recent


class EntryTimes:
    """Of one node."""

    def __init__(self) -> None:
        self._replicated: dict[tuple[bytes, int], Durations] = {}
        self._applied: dict[tuple[bytes, int], Durations] = {}
        self._failures: dict[tuple[bytes, int, str], Durations] = {}
        """Their times are of no account: counts and rates are."""
        self.batches = 0
        """Batches that were appended here as a leader and applied."""

    # -- what happens -----------------------------------------------------------------------------------

    def appended(self, partition: Partition, kind: int, count: int, now_ms: int) -> None:
        """A leader's or candidate's entries went to the log's end."""
        partition.appended.append(Appended(partition.replica.leo, now_ms, kind, count))

    def refused(self, partition: Partition, entries: Sequence[Entry], reason: str, now_ms: int) -> None:
        """A leader's entries were not appended."""
        for kind, count in Counter(map(_KIND_OF, entries)).items():
            self._fail(partition, kind, reason, count, now_ms)

    def timed_out(self, partition: Partition, count: int, now_ms: int) -> None:
        """So many writes were given up by their clients' requests, and are not committed."""
        self._fail(partition, EntryKind.DATA, TIMED_OUT, count, now_ms)

    def _fail(self, partition: Partition, kind: int, reason: str, count: int, now_ms: int) -> None:
        key = (partition.bucket_type, int(kind), reason)
        durations = self._failures.get(key)
        if durations is None:
            durations = self._failures[key] = Durations(now_ms - WINDOW_MS)  # or the first one would be a great rate
        durations.add(0, count, now_ms)

    def role_changed(self, partition: Partition, role: Role, now_ms: int) -> None:
        """Where leadership, or candidacy, is over, what is not committed is lost to it."""
        if role in (Role.CANDIDATE, Role.LEADER, Role.RESIGNING):
            return
        hw = partition.replica.hw
        while partition.appended and partition.appended[-1].end > hw:
            lost = partition.appended.pop()
            self._fail(partition, lost.kind, LOST, lost.entries, now_ms)

    def committed(self, partition: Partition, end: int, now_ms: int) -> None:
        """All below `end` may be applied."""
        waiting = partition.committed
        if waiting and (waiting[-1][1] == now_ms or len(waiting) >= COMMITTED_MAX):
            now_ms = waiting.pop()[1]
        waiting.append((end, now_ms))

    def applied(self, partition: Partition, entries: Sequence[Entry], now_ms: int) -> None:
        """These are in the store."""
        end = entries[-1].offset + 1
        bucket_type = partition.bucket_type
        waiting = partition.committed
        since_ms = waiting[0][1] if waiting else now_ms
        while waiting and waiting[0][0] <= end:
            waiting.popleft()
        kinds = list(map(_KIND_OF, entries))
        alike = kinds.count(kinds[0]) == len(kinds)
        for kind, count in ((kinds[0], len(kinds)),) if alike else Counter(kinds).items():
            self._add(self._applied, (bucket_type, kind), now_ms - since_ms, count, now_ms)
        appended = partition.appended
        while appended and appended[0].end <= end:
            done = appended.popleft()
            self.batches += 1
            self._add(self._replicated, (bucket_type, done.kind), now_ms - done.at_ms, done.entries, now_ms)

    @staticmethod
    def _add(
        of: dict[tuple[bytes, int], Durations], key: tuple[bytes, int], duration_ms: int, count: int, now_ms: int
    ) -> None:
        durations = of.get(key)
        if durations is None:
            durations = of[key] = Durations(now_ms - duration_ms)
        durations.add(duration_ms, count, now_ms)

    # -- what it came to --------------------------------------------------------------------------------

    def replicated_times(self, now_ms: int) -> dict[tuple[bytes, str], KindTimes]:
        """By bucket type and name of the kind."""
        return _shown(self._replicated, now_ms)

    def applied_times(self, now_ms: int) -> dict[tuple[bytes, str], KindTimes]:
        """The same of apply."""
        return _shown(self._applied, now_ms)

    def failures(self) -> dict[tuple[bytes, str, str], int]:
        """Entries by bucket type, name of the kind, and reason."""
        return {(of, KIND_NAMES[kind], reason): each.count for (of, kind, reason), each in self._failures.items()}

    def recent_failures(self, now_ms: int) -> dict[tuple[bytes, str, str], Recent]:
        """The same of the recent past."""
        return {
            (of, KIND_NAMES[kind], reason): each.recent(now_ms) for (of, kind, reason), each in self._failures.items()
        }

    def metrics(self) -> Iterator[Sample]:
        """See `repl.telemetry`."""
        yield "isthmus_replicate_batches_total", {}, self.batches
        for name, by in (
            ("isthmus_replicate_duration_seconds", self._replicated),
            ("isthmus_apply_duration_seconds", self._applied),
        ):
            for (bucket_type, kind), durations in by.items():
                labels = {"bucket_type": bucket_type.decode(), "kind": KIND_NAMES[kind]}
                for bound, count in durations.cumulative():
                    yield f"{name}_bucket", {**labels, "le": bound}, count
                yield f"{name}_count", labels, durations.count
                yield f"{name}_sum", labels, durations.total_ms / 1000
        for (of, kind_name, reason), count in self.failures().items():
            labels = {"bucket_type": of.decode(), "kind": kind_name, "reason": reason}
            yield "isthmus_replicate_failures_total", labels, count


def _shown(of: dict[tuple[bytes, int], Durations], now_ms: int) -> dict[tuple[bytes, str], KindTimes]:
    return {
        (bucket_type, KIND_NAMES[kind]): KindTimes(durations.count, durations.recent(now_ms))
        for (bucket_type, kind), durations in of.items()
    }
