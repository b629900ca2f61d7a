"""Histories to replay: operations in order, and the expected end. From a git repository, or generated from a seed.

Git: first-parent history through git's plumbing, oldest first, each commit against its first parent (the root against
the empty tree), without rename detection. A key is a path's bytes, a value its blob, a symbolic link is its blob,
submodules (mode 160000) are left out.

Generated: the same shape, adds, changes, deletes and adds again, over keys of which a few change often, with values
from 10 bytes to 100 KB. The same seed gives the same operations and the same end on every machine.

Operations are kept in memory, some 250 bytes each: a million changes of a repository fit, and take hours to replay.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from isthmus.repl.model.errors import LocalFault

ABSENT_MODE: Final = b"000000"
SUBMODULE_MODE: Final = b"160000"
WITHOUT_BLOB: Final = (ABSENT_MODE, SUBMODULE_MODE)

_REDIRECTING: Final = (
    "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR", "GIT_NAMESPACE",
)  # fmt: skip
"""Variables that would point git at another repository than the path given (set inside hooks)."""


class HistoryFault(LocalFault):
    """A history that cannot be read: no repository, no git, no commit, or damaged objects."""

    reason = "bad-history"


class HistoryOperation(NamedTuple):
    """One change of one key: `token` names the value in its history (`GitHistory.value`); None deletes."""

    key: bytes
    token: str | None


class Expectation(NamedTuple):
    """The end after all operations: `live` maps each key to its value's blob id (hex) and
    `sizes` to its bytes, `gone` are the keys that were written once and are deleted now."""

    live: dict[bytes, str]
    sizes: dict[bytes, int]
    gone: set[bytes]


def blob_id(value: bytes, like: str) -> str:
    """Git's id of a blob of these bytes, by the hash that the id `like` was made with (SHA-1 or SHA-256)."""
    name = "sha256" if len(like) == 64 else "sha1"
    return hashlib.new(name, b"blob %d\0" % len(value) + value, usedforsecurity=False).hexdigest()


class GitHistory:
    """The first-parent history of HEAD in the repository at `path` (bare or not, or a folder inside one).

    HEAD is resolved once, so commits made meanwhile change nothing. Raises HistoryFault where there is
    no git, no repository or no commit.
    """

    bucket = b"git"
    """The bucket that the operations go to; two histories never share one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._environment = {k: v for k, v in os.environ.items() if k not in _REDIRECTING}
        self._environment |= {"LC_ALL": "C", "GIT_NO_REPLACE_OBJECTS": "1", "GIT_OPTIONAL_LOCKS": "0"}
        if not path.is_dir():
            raise HistoryFault(f"{path} is not a folder; --git needs the path of a git repository")
        self.head = self._git("rev-parse", "--verify", "--quiet", "HEAD^{commit}").decode().strip()
        self.shallow = self._git("rev-parse", "--is-shallow-repository").strip() == b"true"
        self._blobs: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    @property
    def title(self) -> str:
        """Title for people: a path and commit, or a seed."""
        return f"git {self._path} at {self.head[:12]}{' (shallow)' if self.shallow else ''}"

    @cached_property
    def operations(self) -> Sequence[HistoryOperation]:
        """All operations, oldest first, read at the first use. Raises HistoryFault."""
        commits = self._git("rev-list", "--first-parent", "--reverse", "--parents", self.head).splitlines()
        pairs = b"".join(b"%b\n" % b" ".join(line.split()[:2]) for line in commits)  # a merge with one parent only
        fields = iter(
            self._git(
                "diff-tree", "--stdin", "-r", "-z", "--raw", "--root", "--no-renames", "--no-abbrev",
                "--no-commit-id", data=pairs,
            ).split(b"\0")[:-1]
        )  # fmt: skip
        operations = []
        for about, path in zip(fields, fields, strict=True):
            old_mode, new_mode, _, new_id, _ = about.split(b" ")
            if new_mode not in WITHOUT_BLOB:
                operations.append(HistoryOperation(path, new_id.decode()))
            elif old_mode[1:] not in WITHOUT_BLOB:
                operations.append(HistoryOperation(path, None))
        return operations

    def value(self, token: str) -> bytes:
        """The value that an operation's token names; callable from any thread. Raises HistoryFault."""
        with self._lock:
            if self._blobs is None:
                self._blobs = subprocess.Popen(
                    self._command("cat-file", "--batch"), env=self._environment, stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                )  # fmt: skip
            assert self._blobs.stdin is not None
            assert self._blobs.stdout is not None
            try:
                self._blobs.stdin.write(token.encode() + b"\n")
                self._blobs.stdin.flush()
            except BrokenPipeError as error:
                raise HistoryFault("git cat-file ended unexpectedly") from error
            header = self._blobs.stdout.readline().split()
            if len(header) != 3 or header[1] != b"blob":
                raise HistoryFault(f"the repository lacks blob {token} (damaged, or a partial clone)")
            value = self._blobs.stdout.read(int(header[2]) + 1)[:-1]
            if len(value) != int(header[2]):
                raise HistoryFault(f"git cat-file ended in the middle of blob {token}")
            return value

    def expectation(self) -> Expectation:
        """The end: from `git ls-tree`, not from the operations. Raises HistoryFault."""
        live: dict[bytes, str] = {}
        sizes: dict[bytes, int] = {}
        for line in self._git("ls-tree", "-r", "-z", "-l", "--full-tree", self.head).split(b"\0")[:-1]:
            about, path = line.split(b"\t", 1)
            mode, _, object_id, size = about.split()
            if mode != SUBMODULE_MODE:
                live[path], sizes[path] = object_id.decode(), int(size)
        return Expectation(live, sizes, {operation.key for operation in self.operations} - live.keys())

    def close(self) -> None:
        """End the child that reads blobs."""
        with self._lock, suppress(BrokenPipeError):  # a killed child leaves its last request unwritten
            if self._blobs is not None:
                self._blobs.communicate()
                self._blobs = None

    def _command(self, *arguments: str) -> list[str]:
        return ["git", "-C", str(self._path), *arguments]

    def _git(self, *arguments: str, data: bytes | None = None) -> bytes:
        """The output of a git command that reads `data`. Raises HistoryFault."""
        command = self._command(*arguments)
        try:
            done = subprocess.run(command, env=self._environment, input=data, capture_output=True, check=False)
        except FileNotFoundError as error:
            raise HistoryFault("git is not installed (no `git` on PATH)") from error
        if done.returncode != 0:
            reason = _git_error(done.stderr)
            raise HistoryFault(reason or f"{self._path} has no commit yet (git {arguments[0]}: {done.returncode})")
        return done.stdout


def _git_error(errors: bytes) -> str:
    """The last line of git's error output about its failure, without its prefix. Advice follows that line."""
    lines = errors.decode(errors="replace").strip().splitlines()
    failures = [line for line in lines if line.startswith(("fatal: ", "error: "))] or lines
    return failures[-1].strip().removeprefix("fatal: ").removeprefix("error: ") if failures else ""


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
    """`operation_count` operations that follow from `seed`, with the methods of `GitHistory`."""

    bucket = b"made"

    def __init__(self, seed: int, operation_count: int) -> None:
        self.seed = seed
        self._operation_count = operation_count

    @property
    def title(self) -> str:
        return f"made from seed {self.seed}"

    @cached_property
    def operations(self) -> Sequence[HistoryOperation]:
        random = Random(self.seed)  # noqa: S311 - repeatable on purpose
        key_count = max(1, int(self._operation_count * KEYS_PER_OPERATION))
        live: set[bytes] = set()
        operations = []
        for number in range(self._operation_count):
            index = int(key_count * random.random() ** KEY_SKEW)
            key = _SHAPES[index % len(_SHAPES)].format(n=index).encode(errors="surrogateescape")
            deletes = random.random() < DELETE_SHARE
            if key in live and deletes:
                live.discard(key)
                operations.append(HistoryOperation(key, None))
            else:
                live.add(key)
                operations.append(HistoryOperation(key, str(number)))
        return operations

    def value(self, token: str) -> bytes:
        random = Random(f"{self.seed}/{token}")  # noqa: S311 - repeatable on purpose
        size = int(VALUE_BYTES_MEDIAN * random.lognormvariate(0, VALUE_SPREAD))
        return random.randbytes(max(VALUE_BYTES_MIN, min(size, VALUE_BYTES_MAX)))

    def expectation(self) -> Expectation:
        newest = dict(self.operations)
        values = {key: self.value(token) for key, token in newest.items() if token is not None}
        live = {key: blob_id(value, SHA1_HEX) for key, value in values.items()}
        return Expectation(live, {key: len(value) for key, value in values.items()}, newest.keys() - live.keys())

    def close(self) -> None:
        """Nothing is held."""


DemoHistory = GitHistory | MadeHistory
"""A finite sequence of operations whose outcome is known."""
