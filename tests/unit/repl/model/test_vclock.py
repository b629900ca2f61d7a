"""Actors of partitions: their incarnations, and clocks of one writer in either form."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isthmus.repl.model.vclock import (
    INCARNATION_MAX,
    actor_of,
    dot_of_one_writer,
    encode_clock,
    of_one_writer,
    of_partition,
    pack_counter,
    partition_prefix,
    parts_of,
)

UUID = b"u" * 16
INCARNATIONS = st.sampled_from([0, 1, 7, INCARNATION_MAX])


@given(st.integers(0, (1 << 32) - 1), st.integers(0, INCARNATION_MAX))
def test_an_actor_names_its_partition_and_incarnation(partition: int, incarnation: int) -> None:
    """R-ACTOR: actors of two incarnations differ and begin alike; without an incarnation it is the 20 bytes of before,
    and each is read back."""
    actor = actor_of(UUID, partition, incarnation)
    assert parts_of(actor) == (UUID, partition, incarnation)
    assert actor.startswith(partition_prefix(UUID, partition))
    assert len(actor) == (28 if incarnation else 20)
    assert parts_of(actor[:-1]) is None


def test_writes_of_all_incarnations_are_the_partitions() -> None:
    """Entries of other partitions and clusters are not."""
    ours = [(actor_of(UUID, 3, incarnation), 5, 1) for incarnation in (0, 9)]
    others = [(actor_of(UUID, 4), 5, 1), (actor_of(b"v" * 16, 3, 9), 5, 1)]
    assert of_partition(tuple(sorted(ours + others)), partition_prefix(UUID, 3)) == tuple(sorted(ours))


@given(INCARNATIONS, INCARNATIONS, st.integers(1, 5), st.integers(1, 5), st.booleans())
def test_clocks_of_one_writer_are_told_without_decoding(a: int, b: int, first: int, second: int, both: bool) -> None:
    """Exactly if both clocks have one entry, of one incarnation, and the second has the greater counter; a clock of one
    entry shows its dot."""

    def clock(incarnation: int, offset: int) -> bytes:
        entries = [(actor_of(UUID, 3, incarnation), pack_counter(1, offset), 1 << 20)]
        if both:
            entries.append((actor_of(b"v" * 16, 3), pack_counter(1, 1), 1 << 20))
        return encode_clock(tuple(entries))

    assert of_one_writer(clock(a, first), clock(b, second)) is (a == b and first < second and not both)
    dot = None if both else (actor_of(UUID, 3, a), pack_counter(1, first))
    assert dot_of_one_writer(clock(a, first)) == dot
