"""The trace of a simulation as text: one event per line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from isthmus.repl.model.record import PartitionRecord


def render_trace(trace: Iterable[tuple[Any, ...]]) -> str:
    """Each event as (when, who, what, ...); a core's step as (when, process, partition, event, effects)."""
    return "\n".join(_line(*happening) for happening in trace)


def _line(at_ms: int, actor: str, *what: Any) -> str:
    if what and isinstance(what[0], int):
        partition, event, effects = what
        actor = f"{actor}.{partition}"
        text = short(event) + ("  ->  " + short(effects) if effects else "")
    else:
        text = " ".join(short(part) for part in what if part != "")
    return f"{at_ms:>7} {actor:<8} {text}"


def short(thing: object) -> str:
    """An event in few words: entries by their offsets, records by their main fields."""
    if isinstance(thing, str):
        return thing
    if isinstance(thing, PartitionRecord):
        who = thing.leader or thing.candidate
        isr = ",".join(f"{m.node}:{m.log_id}" for m in sorted(thing.isr))
        elr = ",".join(f"{m.node}:{m.log_id}" for m in sorted(thing.elr))
        named = f" {who.node}/{who.session_id}" if who else ""
        moves = "".join(
            f" {sign}{','.join(nodes)}" for sign, nodes in (("+", thing.adding), ("-", thing.removing)) if nodes
        )
        replicas = ",".join(thing.replicas) + moves
        return (
            f"v{thing.version} e{thing.epoch} {thing.status}{named} of {replicas} isr[{isr}] elr[{elr}] "
            f"min{thing.min_isr}"
        )
    names = getattr(thing, "_fields", ()) or getattr(type(thing), "__slots__", ())
    if not names:
        return "; ".join(short(item) for item in thing) if isinstance(thing, list | tuple) else str(thing)
    parts = []
    for name in names:
        value = getattr(thing, name)
        if name == "entries":
            value = f"{value[0].epoch}.{value[0].offset}+{len(value)}" if value else "none"
        parts.append(f"{name}={short(value) if not isinstance(value, tuple) or hasattr(value, '_fields') else value}")
    return f"{type(thing).__name__}({', '.join(parts)})"
