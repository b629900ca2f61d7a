"""Seeds of the world, each with clients, operators and machines that do whatever the seed says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.world.plan import drawn
from tests.simulation.world.run import run
from tests.support.samples import WHOLE, long_seeds

CHECKOUT = Path(__file__).parents[3]

SEEDS = range(40)

SMALL_SEEDS = range(1000, 1160)
"""Each costs a third of the others."""

TLS_SEED = 23

pytestmark = pytest.mark.timeout(180)  # some take seven seconds of a core, and the last one twice as much


@pytest.mark.parametrize("seed", long_seeds(SEEDS, 20))
def test_a_world_ends_equal_and_nothing_is_lost_unnamed(seed: int) -> None:
    """Whatever clients, operators and machines do: once all is healed, every oracle is content."""
    outcome = run(drawn(seed))
    assert outcome.failures == (), f"python -m tests.simulation.world --seeds {seed} --story"


@pytest.mark.parametrize("seed", long_seeds(SMALL_SEEDS, 60))
def test_a_short_life_ends_equal_and_nothing_is_lost_unnamed(seed: int) -> None:
    """The same for many worlds in which little is done: each of any shape, with its features."""
    assert run(drawn(seed, operations=40, acts=8, seconds=12.0)).failures == ()


@pytest.mark.timeout(600)  # two worlds after each other, and handshakes are dear
@pytest.mark.parametrize("seed", [5, TLS_SEED] if WHOLE else [5])
def test_a_seed_gives_the_same_world_in_every_process(seed: int) -> None:
    """Two processes, with different hashes of strings and other keys of certificates, run the same events in the same
    order and tell the same story, byte for byte."""
    assert drawn(seed).shape.tls == (seed == TLS_SEED)
    stories = []
    for hash_seed in ("1", "2"):
        command = [sys.executable, "-m", "tests.simulation.world", "--seeds", str(seed), "--story"]
        done = subprocess.run(
            command, cwd=CHECKOUT, env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True, text=True
        )
        stories.append(done.stdout)
    assert "digest" in stories[0]
    assert stories[0] == stories[1]
