"""Which bucket types stand in which of a Riak's trees: one tree for each n_val, by `[[riak.trees]]`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from isthmus.config.settings import ALL_TYPES, RiakTreeSettings


class TreeGroups:
    """The groups of one node's file."""

    def __init__(self, settings: Sequence[RiakTreeSettings]) -> None:
        self._named: Mapping[int, str] = {one.n_val: one.bucket_types for one in settings}

    def __bool__(self) -> bool:
        return bool(self._named)

    @property
    def n_vals(self) -> list[int]:
        """All of them, ascending."""
        return sorted(self._named)

    def has(self, bucket_type: bytes) -> bool:
        """Whether a group has the bucket type."""
        return any(named == ALL_TYPES or bucket_type.decode() in named.split(",") for named in self._named.values())

    def types_of(self, n_val: int, known: Collection[bytes]) -> list[bytes] | None:
        """Those `known` bucket types of this cluster that a group has; None without such a group."""
        named = self._named.get(n_val)
        if named is None:
            return None
        return sorted(each for each in known if named == ALL_TYPES or each.decode() in named.split(","))
