"""The origin of changes that came from a Riak, and the owner of queues that one takes (pure; docs/decisions.md 97).

A Riak sends neither a name nor an id. All Riaks are one cluster to queues: what came from one is offered to none. Links
and dead letters tell them apart by a source id of their own, made of the peer's name.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

RIAK_NAME: Final = "riak"
"""Name of the owner of queues with `riak_fetch`."""

RIAK_CLUSTER: Final = RIAK_NAME.encode().ljust(16, b"\0")
"""Stands for a Riak's uuid; no uuid that Isthmus draws has this form."""

_PREFIX: Final = RIAK_CLUSTER[:7]
"""Begins each source id. Its last byte is 0, where a random uuid has its version."""


def riak_source(name: str) -> bytes:
    """The source id of a Riak peer, 16 bytes."""
    return _PREFIX + blake2b(name.encode(), digest_size=16 - len(_PREFIX)).digest()


def is_of_riak(source: bytes) -> bool:
    """Whether it is the source id of a Riak peer."""
    return source.startswith(_PREFIX)


def origin_of(source: bytes) -> bytes:
    """The origin of changes from this source: the cluster itself, or RIAK_CLUSTER for every Riak."""
    return RIAK_CLUSTER if is_of_riak(source) else source
