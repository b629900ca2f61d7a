"""All oracles of a world."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.world.oracles_clients import CommittedReads, NothingLost
from tests.simulation.world.oracles_delivered import Delivered
from tests.simulation.world.oracles_state import (
    BegunGaps,
    Bounds,
    ClosedGaps,
    EqualContents,
    Errors,
    Ledgers,
    OneContentPerDot,
    Survivors,
)
from tests.simulation.world.oracles_told import Told

if TYPE_CHECKING:
    from tests.simulation.world.oracle import Oracle
    from tests.simulation.world.world import World


def all_of(world: World) -> tuple[Oracle, ...]:
    """New oracles for a world that has not begun."""
    return (
        EqualContents(),
        ClosedGaps(),
        BegunGaps(),
        Delivered(),
        OneContentPerDot(),
        Ledgers(),
        Bounds(),
        Errors(),
        Survivors(),
        Told(world.kernel.seed),
        NothingLost(),  # it reads every key once more, which the next one judges, too
        CommittedReads(),
    )
