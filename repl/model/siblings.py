"""What a bucket's properties make of concurrent writes: all kept, the newest kept, or no look at what is there. Pure.

The leader decides when it makes the entry; the entry carries the object that came of it, so all replicas hold the same
whatever they have read of properties. Clocks are the same under every property: a write has a dot of its own, never
used before, and the object's clock covers all that was ever there. Who drops a sibling of a merge makes a dot for that,
too, or two clusters whose properties differ would hold different objects under equal clocks.
"""

from __future__ import annotations

from repl.model.objects import Content, Object, Sibling, write
from repl.model.properties import Properties
from repl.model.vclock import Clock, Dot, descends, increment


def written(
    current: Object | None, context: Clock, content: Content, dot: Dot, now_ms: int, properties: Properties
) -> Object:
    """The object after a client's write, as `repl.model.objects.write`, under the bucket's properties.

    `last_write_wins`: what is there is replaced, seen or not. Without `dvv_enabled` a context that has not seen
    everything replaces nothing. Without `allow_mult` the newest sibling by last-modified stays, of two of one moment
    the one that is no tombstone, then that of the greater dot (Riak's rule, but for its last step)."""
    if current is None:
        return write(None, context, content, dot, now_ms)
    if properties.last_write_wins:
        return write(Object(current.clock, ()), context or current.clock, content, dot, now_ms)
    if context and not properties.dvv_enabled and not descends(context, current.clock):
        made = write(Object(current.clock, ()), context, content, dot, now_ms)
        made = Object(made.clock, tuple(sorted((*current.siblings, *made.siblings))))
    else:
        made = write(current, context, content, dot, now_ms)
    return made if properties.allow_mult else _newest_alone(made)


def resolved(merged: Object, dot: Dot, now_ms: int, properties: Properties) -> Object:
    """What a merge of this cluster's object and another's comes to: itself, or its newest sibling, under a clock that
    `dot` tells from the merge's."""
    if properties.allow_mult and not properties.last_write_wins:
        return merged
    if len(merged.siblings) == 1:
        return merged
    return _newest_alone(Object(increment(merged.clock, *dot, now_ms // 1000), merged.siblings))


def _newest_alone(obj: Object) -> Object:
    return obj if len(obj.siblings) == 1 else Object(obj.clock, (max(obj.siblings, key=_age),))


def _age(sibling: Sibling) -> tuple[int, bool, Dot]:
    return sibling.last_modified_ms, not sibling.tombstone, sibling.dot
