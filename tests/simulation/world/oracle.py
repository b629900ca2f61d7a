"""What must hold in every world: oracles look now and then while it runs, and judge it at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tests.simulation.world.world import World


class Oracle(Protocol):
    """One claim about a world."""

    name: str

    def look(self, world: World) -> list[str]:
        """What is wrong at this moment; the world runs and may be broken."""

    def judge(self, world: World) -> list[str]:
        """What is wrong at the end, once all is healed and quiet."""
