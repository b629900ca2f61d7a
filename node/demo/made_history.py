"""A history made from a seed, for machines without a repository that is long enough to watch.

The same shape as a git history: adds, changes, deletes and adds again, over keys of which a few
change often, with values from 10 bytes to 100 KB. The same seed makes the same operations and the
same end on every machine. Nothing here does I/O. The story goes on in `node.demo.replay`.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final

from node.demo.history import Expectation, Operation, blob_id

VALUE_BYTES_MIN: Final = 10
VALUE_BYTES_MAX: Final = 100_000
VALUE_BYTES_MEDIAN: Final = 1_000
"""Sizes are spread log-normally about this, cut at the two bounds: the mean is near 2.7 KB, so that 20,000
operations move some 50 MB, which a slow disk carries easily."""

VALUE_SPREAD: Final = 1.4
"""Standard deviation of the size's natural logarithm; reaches both bounds in a few thousand values."""

KEYS_PER_OPERATION: Final = 0.2
"""Keys to choose from, as a share of the operations: five changes a key on average."""

KEY_SKEW: Final = 2.5
"""Exponent of the choice: the hottest hundredth of the keys takes about a sixth of the changes."""

DELETE_SHARE: Final = 0.15
"""Chance that a key which is there is deleted rather than changed; most come back later."""

SHA1_HEX: Final = "0" * 40
"""Blob ids here are SHA-1, as in most repositories."""

_SHAPES: Final = (
    "users/{n:05d}",
    "orders/2024/{n}.json",
    "images/{n:x}/full size.jpg",
    "wörter/{n}/früh & spät",
    "logs/{n}%2Fnot-a-slash?x=1#y",
    "raw/\udcff\udc80{n}\n\ttail",
)
"""Shapes of keys; the odd ones hold what clients must encode: slashes, spaces, signs, newlines, bytes that
are no UTF-8 (written here as surrogate escapes)."""


class MadeHistory:
    """`operation_count` operations that follow from `seed`."""

    bucket = b"made"

    def __init__(self, seed: int, operation_count: int) -> None:
        self.seed = seed
        self._operation_count = operation_count
        self._key_count = max(1, int(operation_count * KEYS_PER_OPERATION))

    @property
    def title(self) -> str:
        return f"made from seed {self.seed}"

    def count(self) -> int:
        return self._operation_count

    def operations(self) -> Iterator[Operation]:
        random = Random(self.seed)  # noqa: S311 - repeatable on purpose
        live: set[int] = set()
        for number in range(self._operation_count):
            index = int(self._key_count * random.random() ** KEY_SKEW)
            deletes = random.random() < DELETE_SHARE
            if index in live and deletes:
                live.discard(index)
                yield Operation(self._key(index), None)
            else:
                live.add(index)
                yield Operation(self._key(index), str(number))

    def value(self, token: str) -> bytes:
        random = Random(f"{self.seed}/{token}")  # noqa: S311 - repeatable on purpose
        size = int(VALUE_BYTES_MEDIAN * random.lognormvariate(0, VALUE_SPREAD))
        return random.randbytes(max(VALUE_BYTES_MIN, min(size, VALUE_BYTES_MAX)))

    def expectation(self) -> Expectation:
        tokens: dict[bytes, str] = {}
        ever: set[bytes] = set()
        for operation in self.operations():
            ever.add(operation.key)
            if operation.token is None:
                del tokens[operation.key]
            else:
                tokens[operation.key] = operation.token
        live: dict[bytes, str] = {}
        sizes: dict[bytes, int] = {}
        for key, token in tokens.items():
            value = self.value(token)
            live[key] = blob_id(value, SHA1_HEX)
            sizes[key] = len(value)
        return Expectation(live, sizes, ever - live.keys())

    def close(self) -> None:
        """Nothing is held."""

    @staticmethod
    def _key(index: int) -> bytes:
        return _SHAPES[index % len(_SHAPES)].format(n=index).encode(errors="surrogateescape")
