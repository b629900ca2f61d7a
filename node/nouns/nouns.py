"""All nouns that are described. Pure."""

from __future__ import annotations

from typing import Final

from isthmus.node.nouns.bucket_type import BUCKET_TYPE
from isthmus.node.nouns.dead_letter import DEAD_LETTERS
from isthmus.node.nouns.description import DescribedNoun
from isthmus.node.nouns.fullsync import FULLSYNC, TREES
from isthmus.node.nouns.node import NODE
from isthmus.node.nouns.option import OPTION
from isthmus.node.nouns.partition import PARTITION
from isthmus.node.nouns.queue import QUEUE
from isthmus.node.nouns.riak import RIAK
from isthmus.node.nouns.sink import SINK

NOUNS: Final[tuple[DescribedNoun, ...]] = (
    OPTION,
    BUCKET_TYPE,
    PARTITION,
    NODE,
    QUEUE,
    SINK,
    DEAD_LETTERS,
    RIAK,
    FULLSYNC,
    TREES,
)
