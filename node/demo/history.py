"""Histories to replay: operations in order, and the expected end. From a git repository, or generated from a seed.

Git: first-parent history through git's plumbing, oldest first, each commit against its first parent (the root against
the empty tree), without rename detection. A key is a path's bytes, a value its blob, a symbolic link is its blob,
submodules (mode 160000) are left out. Memory holds path names and one blob at most.

Generated: the same shape, adds, changes, deletes and adds again, over keys of which a few change often, with values
from 10 bytes to 100 KB. The same seed gives the same operations and the same end on every machine.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import IO, Final, NamedTuple, Protocol

from isthmus.repl.model.errors import LocalFault

SUBMODULE_MODE: Final = b"160000"
ABSENT_MODE: Final = b"000000"

READ_CHUNK_BYTES: Final = 256 * 1024
"""Bytes of git's output in one read; large enough that the pipe never waits for Python."""

_REDIRECTING: Final = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_NAMESPACE",
)
"""Variables that would point git at another repository than the path given (set inside hooks)."""

_FAILURES: Final = ("fatal: ", "error: ")
"""Prefixes of git's lines about its failure."""


class HistoryFault(LocalFault):
    """A history that cannot be read: no repository, no git, no commit, or damaged objects."""

    reason = "bad-history"


class HistoryOperation(NamedTuple):
    """One change of one key: `token` names the value in its history (`DemoHistory.value`); None deletes."""

    key: bytes
    token: str | None


class Expectation(NamedTuple):
    """The end after all operations: `live` maps each key to its value's blob id (hex) and
    `sizes` to its bytes, `gone` are the keys that were written once and are deleted now."""

    live: dict[bytes, str]
    sizes: dict[bytes, int]
    gone: set[bytes]


class DemoHistory(Protocol):
    """A finite sequence of operations whose outcome is known."""

    @property
    def bucket(self) -> bytes:
        """The bucket that the operations go to; two histories never share one."""

    @property
    def title(self) -> str:
        """Title for people: a path and commit, or a seed."""

    def count(self) -> int:
        """How many operations there are; walks the history the first time."""

    def operations(self) -> Iterator[HistoryOperation]:
        """All operations, oldest first; may be called again and yields the same."""

    def value(self, token: str) -> bytes:
        """The value that an operation's token names; callable from any thread."""

    def expectation(self) -> Expectation:
        """The end: from `git ls-tree` or the generator's model, not from the operations' replay."""

    def close(self) -> None:
        """Release processes and files."""


def blob_id(value: bytes, like: str) -> str:
    """Git's id of a blob of these bytes, by the hash that the id `like` was made with (SHA-1 or SHA-256)."""
    hasher = hashlib.sha256() if len(like) == 64 else hashlib.sha1(usedforsecurity=False)
    hasher.update(b"blob %d\0" % len(value))
    hasher.update(value)
    return hasher.hexdigest()


class GitHistory:
    """The first-parent history of HEAD in the repository at `path` (bare or not, or a folder inside one).

    HEAD is resolved once, so commits made meanwhile change nothing. Raises HistoryFault where there is
    no git, no repository or no commit.
    """

    bucket = b"git"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._environment = {k: v for k, v in os.environ.items() if k not in _REDIRECTING}
        self._environment |= {"LC_ALL": "C", "GIT_NO_REPLACE_OBJECTS": "1", "GIT_OPTIONAL_LOCKS": "0"}
        if not path.is_dir():
            raise HistoryFault(f"{path} is not a folder; --git wants the path of a git repository")
        self.head = self._run("rev-parse", "--verify", "--quiet", "HEAD^{commit}").decode().strip()
        self.shallow = self._run("rev-parse", "--is-shallow-repository").strip() == b"true"
        self._count: int | None = None
        self._ever: set[bytes] = set()
        self._blobs: _BlobReader | None = None
        self._lock = threading.Lock()

    @property
    def title(self) -> str:
        return f"git {self._path} at {self.head[:12]}{' (shallow)' if self.shallow else ''}"

    def count(self) -> int:
        if self._count is None:
            count = 0
            for operation in self.operations():
                count += 1
                self._ever.add(operation.key)
            self._count = count
        return self._count

    def operations(self) -> Iterator[HistoryOperation]:
        for old_mode, new_mode, new_id, path in self._changes():
            if new_mode not in (ABSENT_MODE, SUBMODULE_MODE):
                yield HistoryOperation(path, new_id.decode())
            elif old_mode not in (ABSENT_MODE, SUBMODULE_MODE):
                yield HistoryOperation(path, None)

    def value(self, token: str) -> bytes:
        with self._lock:
            if self._blobs is None:
                self._blobs = _BlobReader(self._command("cat-file", "--batch"), self._environment)
            return self._blobs.read(token)

    def expectation(self) -> Expectation:
        self.count()
        live: dict[bytes, str] = {}
        sizes: dict[bytes, int] = {}
        with self._stream("ls-tree", "-r", "-z", "-l", "--full-tree", self.head) as output:
            for line in _fields(output):
                about, path = line.split(b"\t", 1)
                mode, _, object_id, size = about.split()
                if mode != SUBMODULE_MODE:
                    live[path] = object_id.decode()
                    sizes[path] = int(size)
        return Expectation(live, sizes, self._ever - live.keys())

    def close(self) -> None:
        """End the child that reads blobs."""
        with self._lock:
            if self._blobs is not None:
                self._blobs.close()
                self._blobs = None

    def _changes(self) -> Iterator[tuple[bytes, bytes, bytes, bytes]]:
        """(old mode, new mode, new blob id, path) of every change, in order."""
        with self._stream(
            "diff-tree", "--stdin", "-r", "-z", "--raw", "--root", "--no-renames", "--no-abbrev",
            "--no-commit-id", feed=self._first_parents,
        ) as output:  # fmt: skip
            fields = _fields(output)
            for about in fields:
                old_mode, new_mode, _, new_id, _ = about.split(b" ")
                yield old_mode[1:], new_mode, new_id, next(fields)

    def _first_parents(self, sink: IO[bytes]) -> None:
        """Write "COMMIT PARENT" for each commit, so that merges are compared with their first parent only."""
        with self._stream("rev-list", "--first-parent", "--reverse", "--parents", self.head) as output:
            for line in output:
                sink.write(b" ".join(line.split()[:2]) + b"\n")

    def _command(self, *arguments: str) -> list[str]:
        return ["git", "-C", str(self._path), *arguments]

    def _run(self, *arguments: str) -> bytes:
        try:
            done = subprocess.run(self._command(*arguments), env=self._environment, capture_output=True, check=False)
        except FileNotFoundError as error:
            raise HistoryFault("git is not installed (no `git` on PATH)") from error
        if done.returncode != 0:
            raise HistoryFault(_git_error(done.stderr) or f"{self._path} has no commit yet")
        return done.stdout

    def _stream(self, *arguments: str, feed: _InputWriter | None = None) -> _GitStream:
        return _GitStream(self._command(*arguments), self._environment, feed)


class _InputWriter(Protocol):
    """Writes a child's input; runs in a thread beside the reader of its output."""

    def __call__(self, sink: IO[bytes], /) -> None: ...


class _GitStream:
    """A git child whose output is read as it comes; a failure of it, or of its feeder, is raised at the end."""

    def __init__(self, command: list[str], environment: dict[str, str], feed: _InputWriter | None) -> None:
        self._command = command
        self._environment = environment
        self._feed = feed
        self._fault: Exception | None = None
        self._feeder: threading.Thread | None = None

    def __enter__(self) -> IO[bytes]:
        self._errors = tempfile.TemporaryFile()
        self._child = subprocess.Popen(
            self._command,
            env=self._environment,
            stdin=subprocess.PIPE if self._feed else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=READ_CHUNK_BYTES,
        )
        if self._feed is not None:
            self._feeder = threading.Thread(target=self._run_feeder, name="git-feeder", daemon=True)
            self._feeder.start()
        assert self._child.stdout is not None
        return self._child.stdout

    def _run_feeder(self) -> None:
        assert self._feed is not None
        assert self._child.stdin is not None
        try:
            with self._child.stdin as sink:
                self._feed(sink)
        except BrokenPipeError:
            pass  # the reader stopped early or the child died; its exit code is checked
        except Exception as error:  # noqa: BLE001 - handed to the reader, which raises it
            self._fault = error

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        assert self._child.stdout is not None
        if kind is not None:
            self._child.kill()
        self._child.stdout.close()
        status = self._child.wait()
        if self._feeder is not None:
            self._feeder.join()
        with self._errors:
            self._errors.seek(0)
            message = _git_error(self._errors.read())
        if kind is not None:
            return
        if self._fault is not None:
            raise self._fault
        if status != 0:
            raise HistoryFault(message or f"`{' '.join(self._command)}` ended with status {status}")


class _BlobReader:
    """One `git cat-file --batch` child; not thread-safe."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._child = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )

    def read(self, object_id: str) -> bytes:
        """The blob's bytes. Raises HistoryFault when the repository lacks it."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        try:
            self._child.stdin.write(object_id.encode() + b"\n")
            self._child.stdin.flush()
        except BrokenPipeError as error:
            raise HistoryFault("git cat-file ended unexpectedly") from error
        header = self._child.stdout.readline().split()
        if len(header) != 3 or header[1] != b"blob":
            raise HistoryFault(f"the repository lacks blob {object_id} (damaged, or a partial clone)")
        value = self._child.stdout.read(int(header[2]) + 1)[:-1]
        if len(value) != int(header[2]):
            raise HistoryFault(f"git cat-file ended in the middle of blob {object_id}")
        return value

    def close(self) -> None:
        """End the child."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        with suppress(BrokenPipeError):  # a child that was killed: what it was asked last is still to be written
            self._child.stdin.close()
        self._child.stdout.close()
        self._child.wait()


def _fields(output: IO[bytes]) -> Iterator[bytes]:
    """The NUL-terminated fields of a `-z` output."""
    rest = b""
    while chunk := output.read(READ_CHUNK_BYTES):
        *whole, rest = (rest + chunk).split(b"\0")
        yield from whole


def _git_error(errors: bytes) -> str:
    """The last line of git's error output about its failure, without its prefix. Advice follows that line."""
    lines = errors.decode(errors="replace").strip().splitlines()
    failures = [line for line in lines if line.startswith(_FAILURES)] or lines
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

    def operations(self) -> Iterator[HistoryOperation]:
        random = Random(self.seed)  # noqa: S311 - repeatable on purpose
        live: set[int] = set()
        for number in range(self._operation_count):
            index = int(self._key_count * random.random() ** KEY_SKEW)
            deletes = random.random() < DELETE_SHARE
            if index in live and deletes:
                live.discard(index)
                yield HistoryOperation(self._key(index), None)
            else:
                live.add(index)
                yield HistoryOperation(self._key(index), str(number))

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
