"""Removing: a node that holds nothing and does not live is forgotten, and a new one may take its name.

Nothing may be ordered for it, or it would be forgotten while it gets replicas; one that comes back that very moment is
left as it was. What moves its replicas off is `repl.relocating`'s drain.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import structlog

from repl.metastore.port import Ambiguous, Conflict, Metastore, Unavailable
from repl.metastore.presence import IDS_PATH
from repl.model.errors import BadInput, NotReady, OutcomeUnknown
from repl.placement_orders import change_placement
from repl.relocating import Ground, NoSuch

log = structlog.get_logger(__name__)

STANDING_PATH: Final = "/replicas"
"""Below it the metastore keeps what each node ever registered with (`repl.metastore.presence`)."""


async def ids_of_nodes(metastore: Metastore) -> dict[str, tuple[int, int]]:
    """Node -> (its id, the version of its note), of all that ever registered and were not removed. Raises what the
    metastore raises."""
    found: dict[str, tuple[int, int]] = {}
    for number in await metastore.children(IDS_PATH):
        held = await metastore.get(f"{IDS_PATH}/{number}")
        if held is not None and number.isdigit():
            found[held.value.decode(errors="replace")] = int(number), held.version
    return found


class StillNeeded(BadInput):
    """A node may not be removed yet."""

    reason = "still-needed"


async def remove_node(metastore: Metastore, node: str, by: str, *, dry_run: bool) -> None:
    """Forget a node that holds nothing and does not live. Raises NoSuch, StillNeeded, NotReady, OutcomeUnknown."""
    begun = False
    try:
        ground = await Ground.read(metastore)
        standing = await metastore.get(f"{STANDING_PATH}/{node}")
        number = (await ids_of_nodes(metastore)).get(node)
        noted = standing is not None or number is not None or node in ground.placement.drained
        if not noted and node not in ground.known():
            raise NoSuch(f"no node {node!r:.80} is known; there are {', '.join(sorted(ground.known()))}")
        held = sorted(p for p, record in ground.records.items() if node in record.replicas)
        coming = sorted(p for p, (_, target) in ground.placement.pending().items() if node in target)
        if held or coming:
            some = f"{len(held)} replicas" if held else f"{len(coming)} replicas that are ordered for it"
            raise StillNeeded(f"{node} holds {some}: `isthmus node drain {node}` moves them off, then remove it")
        if node in ground.registrations:
            raise StillNeeded(f"{node} lives: stop it first")
        if dry_run:
            return
        if standing is not None:  # first: a node that came back has written it anew, and then nothing is forgotten
            await metastore.delete(f"{STANDING_PATH}/{node}", standing.version)
            begun = True
        if number is not None:
            await metastore.delete(f"{IDS_PATH}/{number[0]}", number[1])
            begun = True
        if begun and node in await metastore.registrations():  # it came back that very moment: it is known by these
            with suppress(Conflict):  # it has noted them anew itself
                if standing is not None:
                    await metastore.put(f"{STANDING_PATH}/{node}", standing.value, None)
            with suppress(Conflict):
                if number is not None:
                    await metastore.put(f"{IDS_PATH}/{number[0]}", node.encode(), None)
            raise StillNeeded(f"{node} has just come back: stop it first")
        await change_placement(metastore, lambda placement: placement.without_drained([node]))  # last: it may be back
    except (Unavailable, Conflict, NotReady) as error:
        if begun:
            raise OutcomeUnknown(f"{node} is removed in part: {error}; do it again") from error
        raise NotReady(f"{node} was not removed: {error or 'it has just registered'}") from error
    except Ambiguous as error:
        raise OutcomeUnknown(f"{node} may have been removed: {error}; do it again") from error
    log.info("placement.node_removed", peer=node, by=by)
