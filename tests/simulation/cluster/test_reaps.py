"""Reaps in whole clusters under faults: no value below a tombstone's clock comes back; defects that would allow it are
caught."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import pytest

from isthmus.repl.coordinator.write_batch import WriteBatch
from isthmus.repl.store import row_codec
from isthmus.repl.store.reaped_keys import GONE, ReapedWindows
from tests.simulation.cluster.fault_mixes import cuts
from tests.simulation.cluster.plan import Plan
from tests.simulation.cluster.reaps import RowClient, RowProcess, RowSimulation, RowStore
from tests.simulation.cluster.simulator import run_seed
from tests.simulation.cluster.state_transfer import StateTransfers
from tests.support.memory_store import MemoryTransfers
from tests.support.samples import COUNTS, WHOLE, seeds

ALL_SEEDS = range(60)
SEEDS = seeds(ALL_SEEDS)
CHUNK = 6 if WHOLE else len(SEEDS)
DEFECT_SEEDS = range(120)

EXPECTED: Mapping[str, int] = {
    "reaps": 300, "reaps_remembered": 30, "reap_waits_for_copies": 100, "push_superseded": 3_000, "push_merged": 300,
    "push_applied": 500, "kill": 30, "power_loss": 30, "replay": 30, "elections": 200, "far_rounds": 20,
    "far_lacks_a_reap": 2,
}  # fmt: skip
"""Minimum number of occurrences over ALL_SEEDS."""

Patch = pytest.MonkeyPatch


def far_rows() -> Plan:
    """Replicas are cut off and killed while logs are trimmed under them, so that they take rows."""
    return Plan.only(
        "isolate", "kill", "power_loss", "replace_disk", gap_ms=600, write_gap_ms=40, trims=0.9, harsh_trims=True
    )


total: Counter[str] = Counter()
"""Occurrences in the chunks that ran in this process."""

ran: set[int] = set()
"""The seeds of it."""


@pytest.mark.parametrize("first", range(SEEDS.start, SEEDS.stop, CHUNK))
def test_nothing_comes_back_whatever_fails(first: int) -> None:
    """I-NO-RESURRECT, I-FAR-COMMITTED, I-CLOCK-STABLE: over crashes, losses of power, changes of leader, moves and
    replicas that take rows, with late and repeated pushes; all replicas have the same clocks of reaped keys, and the
    other cluster has every delete."""
    for seed in range(first, first + CHUNK):
        total.update(run_seed(seed, simulation_class=RowSimulation, plan=far_rows() if seed % 3 == 0 else None).counts)
        ran.add(seed)


@COUNTS
def test_all_of_it_happens() -> None:
    """The seeds are not tame: reaps, those that wait, late pushes of each outcome, and each fault."""
    if ran != set(SEEDS):
        pytest.skip("counts what test_nothing_comes_back_whatever_fails went through, which did not run as a whole")
    missing = {name: (total[name], least) for name, least in EXPECTED.items() if total[name] < least}
    assert not missing, f"happened too rarely (seen, at least): {missing}"


def test_a_break_that_only_the_leader_saw_is_healed() -> None:
    """R-HEARD: in this seed only the leader notices the broken connections, and its followers once stayed out of sync
    for ever."""
    run_seed(1_997, simulation_class=RowSimulation)


def test_a_deposed_leader_rejects_no_sound_push() -> None:
    """R-FORGED: a leader that is cut off gets pushes whose clocks include writes of its successor. It must not reject
    them as forged for good, and no read that would confirm that refusal is ever confirmed."""
    for seed in (710_761, 711_182):
        run_seed(seed, simulation_class=RowSimulation)
    ahead = [run_seed(seed, simulation_class=RowSimulation, plan=cuts()()).counts["clock_ahead"] for seed in PUSHED]
    assert sum(ahead) > 0


class RecallingSimulation(RowSimulation):
    """Clients write with clocks that they read from earlier leaders."""

    recalls = 0.9


PUSHED = (62, 68, 71, 88, 93)
RECALLED = (51, 63, 88, 100, 119)
"""Seeds of `cuts` in which a deposed leader is shown a clock of its successor, in a push and in a context."""


def test_a_deposed_leader_refuses_no_sound_context_for_good() -> None:
    """R-FORGED for the context of a client's write, read at the successor."""
    ahead = [
        run_seed(seed, simulation_class=RecallingSimulation, plan=cuts()()).counts["clock_ahead"] for seed in RECALLED
    ]
    assert sum(ahead) > 0


def test_a_leader_that_does_not_wait_for_confirmation_is_caught(monkeypatch: Patch) -> None:
    """R-FORGED: the simulator notices a sound push or context that is refused for good."""
    monkeypatch.setattr(WriteBatch, "_never_made", lambda _self, error, _clock: error)
    assert any(found.startswith("R-FORGED") for found in violations(RecallingSimulation, RECALLED))


def violations(simulation_class: type[RowSimulation], seeds: Iterable[int]) -> Iterator[str]:
    """Errors of the seeds of `cuts`."""
    for seed in seeds:
        try:
            run_seed(seed, simulation_class=simulation_class, plan=cuts()())
        except AssertionError as error:
            yield str(error)


class RepeatingSimulation(RowSimulation):
    """Clients send requests again under the same id, whatever their outcome."""

    repeats = 0.3


def test_a_request_takes_effect_once_over_changes_of_leader() -> None:
    """H40, R-WAIT: a request that is sent again, to another leader even, is answered as the one that it was, once that
    is applied and committed, or its outcome is unknown; it never takes effect twice, also over deletes and reaps."""
    counts: Counter[str] = Counter()
    for seed in range(40):
        counts.update(run_seed(seed, simulation_class=RepeatingSimulation, plan=cuts()()).counts)
    assert counts["repeated"] > 300
    assert counts["repeated_waits"] > 50


def forgets_what_is_pending(patch: Patch) -> None:
    """A request that is appended and not applied is unknown when it is repeated (against H40)."""

    def known(self: WriteBatch, request_id: bytes, hash64: int) -> int | None:
        return self.store.request_offset(self.partition.id, hash64, request_id)

    patch.setattr(WriteBatch, "_request_offset", known)


def answers_at_once(patch: Patch) -> None:
    """A repeated request is answered before the entry is applied that it rests on (against R-WAIT)."""
    sound = WriteBatch._answer_repeated
    patch.setattr(WriteBatch, "_answer_repeated", lambda self, *given: (sound(self, *given)[0], 0))


@pytest.mark.parametrize("put_in", [forgets_what_is_pending, answers_at_once])
def test_a_defect_of_repeated_requests_is_caught(put_in: Callable[[Patch], None], monkeypatch: Patch) -> None:
    """Some seed reports the defect as I-ACK."""
    put_in(monkeypatch)
    assert any(found.startswith("I-ACK") for found in violations(RepeatingSimulation, range(20)))


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_nothing_comes_back_over_a_thousand_more_seeds() -> None:
    """No invariant breaks over a longer range of seeds."""
    for seed in range(1_000, 2_000):
        run_seed(seed, simulation_class=RowSimulation, plan=far_rows() if seed % 3 == 0 else None)


def busy() -> Plan:
    """Many writes, deletes and reaps, few faults."""
    return Plan.only("kill", "stop", gap_ms=3_000, write_gap_ms=12)


def forgets_at_a_restart(patch: Patch) -> None:
    """Clocks of reaped keys are kept in memory alone (against R-REAP)."""
    sound = RowProcess.attach

    def attach(self: RowProcess, partition: int) -> None:
        self.rows_of(partition)._remembered.reaped = ReapedWindows()
        sound(self, partition)

    patch.setattr(RowProcess, "attach", attach)
    patch.setattr(RowStore, "look", lambda _: None)


def forgets_when_it_writes(patch: Patch) -> None:
    """A write to a reaped key ignores the reaped clock (against R-REAP)."""
    sound = WriteBatch.write

    def write(self: WriteBatch, request: Any, hash64: int) -> tuple[object, int]:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(WriteBatch, "reaped_clock", lambda *_: ())
            return sound(self, request, hash64)

    patch.setattr(WriteBatch, "write", write)


def takes_what_has_not_seen_the_tombstone(patch: Patch) -> None:
    """A push that is concurrent with a reaped tombstone is stored as it came (against R-REAP)."""
    patch.setattr(WriteBatch, "_merge_over_reaped", lambda _self, _last, theirs: theirs)


def leaves_out_what_was_reaped(patch: Patch) -> None:
    """A replica that receives rows does not get the clocks of reaped keys (against R-REAP)."""
    sound = MemoryTransfers.install_state

    def install_state(self: MemoryTransfers, partition: int, chunk: bytes, *, first: bool) -> Any:
        found = [(name, value) for name, value in row_codec.decode_state(chunk) if not name[1:].startswith(GONE)]
        return sound(self, partition, row_codec.encode(found), first=first)

    patch.setattr(MemoryTransfers, "install_state", install_state)


def gives_rows_over_a_reap(patch: Patch) -> None:
    """A replica that may have keys that were reaped since is sent rows (against R-REAP)."""
    patch.setattr(StateTransfers, "lacks_a_reap", lambda *_: False)


def reaps_what_is_not_acknowledged(patch: Patch) -> None:
    """A tombstone goes before the other cluster has it (against R-REAP)."""
    patch.setattr(RowClient, "may_reap", lambda *_: True)


NO_RESURRECT = "I-NO-RESURRECT"
FAR = "I-FAR-COMMITTED"


class Defect(NamedTuple):
    """`put_in` patches it; `name`: how the violation begins; `plan`: the mix; `seed`: tried first, because it catches
    the defect soonest."""

    put_in: Callable[[Patch], None]
    name: str
    plan: Callable[[], Plan]
    seed: int = 0


DEFECTS = (
    Defect(forgets_at_a_restart, NO_RESURRECT, busy, seed=11),
    Defect(forgets_when_it_writes, NO_RESURRECT, busy),
    Defect(takes_what_has_not_seen_the_tombstone, NO_RESURRECT, busy, seed=6),
    Defect(leaves_out_what_was_reaped, FAR, far_rows),
    Defect(gives_rows_over_a_reap, FAR, far_rows, seed=6),
    Defect(reaps_what_is_not_acknowledged, NO_RESURRECT, busy),
)


@pytest.mark.parametrize("plan", [busy, far_rows])
def test_the_sound_product_passes_the_mixes_that_catch_defects(plan: Callable[[], Plan]) -> None:
    """Without a defect the special mixes pass, so a failure under a mutant is due to its defect."""
    for seed in range(2):
        run_seed(seed, simulation_class=RowSimulation, plan=plan())


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.put_in.__name__)
def test_a_defect_of_reaping_is_caught(defect: Defect, monkeypatch: Patch) -> None:
    """Some seed breaks the matching invariant."""
    defect.put_in(monkeypatch)
    for seed in (defect.seed, *DEFECT_SEEDS):
        try:
            run_seed(seed, simulation_class=RowSimulation, plan=defect.plan())
        except AssertionError as error:
            found = str(error)
            break
    else:
        found = "no seed notices it"
    assert found.startswith(defect.name)
