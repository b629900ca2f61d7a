"""Mutants of valid input at every decoder of bytes from outside: taken or refused, in bounded time and memory."""

from __future__ import annotations

import gc
import resource
import time
from random import Random
from typing import Final

import pytest

from tests.support.mutation_targets import MutationTarget, mutation_targets
from tests.support.mutations import mutant

SEED: Final = 20_260

QUICK_MUTANTS: Final = 4_000
MANY_MUTANTS: Final = 1_000_000

MEAN_INPUT_S: Final = 0.005
"""Average CPU that a mutant of one target may take: several times that of the slowest, a config file."""

LONGEST_INPUT_S: Final = 2.0
"""CPU that a single mutant of at most 16 KB may take; it may include a garbage collection of the whole run."""

GROWTH_BYTES_MAX: Final = 48 * 1024 * 1024
"""How much a million mutants may leave: caches that are bounded, and free memory that the allocator keeps. A leak of
100 bytes for each would be twice as much."""


def resident_bytes() -> int:
    """The memory that this process occupies now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def attack(target: MutationTarget, chance: Random, count: int) -> tuple[int, float]:
    """Decode so many mutants; how many were taken, and the longest time in CPU seconds."""
    taken, longest_s = 0, 0.0
    for _ in range(count):
        data = mutant(chance, target.samples, target.encoding)
        began_s = time.process_time()
        try:
            target.decode(data)
            taken += 1
        except target.errors as refusal:
            if not str(refusal):
                raise AssertionError(f"{target.name}: an error without a sentence for {data!r}") from refusal
        except Exception as error:
            raise AssertionError(f"{target.name}: {error!r} for {data!r}") from error
        longest_s = max(longest_s, time.process_time() - began_s)
    return taken, longest_s


def attack_all(targets: list[MutationTarget], count: int, seed: int) -> dict[str, int]:
    """`count` mutants, evenly spread; how many of each target were taken. Each target has its own chance."""
    share = -(-count // len(targets))
    counts = {}
    for target in targets:
        began_s = time.process_time()
        counts[target.name], longest_s = attack(target, Random(f"{seed} {target.name}"), share)
        mean_s = (time.process_time() - began_s) / share
        assert longest_s < LONGEST_INPUT_S, f"{target.name}: one mutant took {longest_s:.1f} s"
        assert mean_s < MEAN_INPUT_S or share < 500, f"{target.name}: a mutant took {1000 * mean_s:.1f} ms on average"
    return counts


def test_what_mutants_are_made_of_is_taken() -> None:
    """Every sample is valid input, and no two targets have one name: so a mutant is close to valid input."""
    with mutation_targets() as targets:
        assert len({target.name for target in targets}) == len(targets) > 70
        for target in targets:
            for sample in target.samples:
                target.decode(sample)


def test_mutants_are_taken_or_refused() -> None:
    """Each of some dozens of mutants of a target gives a value, or an error of the target's own classes with a
    sentence."""
    with mutation_targets() as targets:
        counts = attack_all(targets, QUICK_MUTANTS, SEED)
    assert sum(counts.values()) > QUICK_MUTANTS / 20, "nearly nothing was taken: mutants are too far from valid input"
    assert sum(counts.values()) < QUICK_MUTANTS * 0.8, "nearly everything was taken: mutants are no mutants"


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_a_million_mutants_are_taken_or_refused_and_leave_nothing() -> None:
    """Every mutant is decoded or refused; afterwards the process is as large as after the first hundred mutants of each
    target."""
    with mutation_targets() as targets:
        attack_all(targets, 100 * len(targets), SEED + 1)
        gc.collect()
        before = resident_bytes()
        attack_all(targets, MANY_MUTANTS, SEED + 2)
        gc.collect()
        grown = resident_bytes() - before
    assert grown < GROWTH_BYTES_MAX, f"{grown / 1024 / 1024:.0f} MB more than before"
