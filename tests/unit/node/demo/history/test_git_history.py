"""A replay of a repository's history ends in exactly the tree that git itself would check out."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from isthmus.node.demo.history import GitHistory, HistoryFault, HistoryOperation, blob_id

ODD = [
    b"new\nline",
    b"quo\"te'd",
    b"sp ace/\ttab",
    b"\xff\xfe-bytes",
    "ümlaut/é".encode(),
    b"-dash",
    b"%2F",
    b":100644",
]


class Repository:
    """A repository made in the test, through git's own commands."""

    def __init__(self, path: Path, object_format: str = "sha1") -> None:
        self.path = path
        self.git("init", "-q", "-b", "main", f"--object-format={object_format}", str(path), at="/")

    def git(self, *arguments: str | bytes, at: str | None = None, data: bytes | None = None) -> bytes:
        """Run git without anyone's configuration."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | {
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_CONFIG_SYSTEM": "/dev/null",
            "GIT_AUTHOR_NAME": "a",
            "GIT_AUTHOR_EMAIL": "a@b.example",
            "GIT_COMMITTER_NAME": "a",
            "GIT_COMMITTER_EMAIL": "a@b.example",
        }
        return subprocess.run(
            ["git", "-C", at or str(self.path), *arguments],
            env=environment,
            input=data,
            check=True,
            capture_output=True,
        ).stdout

    def write(self, path: bytes, data: bytes) -> None:
        full = os.path.join(os.fsencode(self.path), path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "wb") as file:
            file.write(data)

    def remove(self, path: bytes) -> None:
        os.unlink(os.path.join(os.fsencode(self.path), path))

    def commit(self, message: str) -> None:
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", message)

    def submodule(self, path: str) -> None:
        """Put a submodule's entry into the index, as `git submodule add` does."""
        commit = self.git("rev-parse", "HEAD").decode().strip()
        self.git("update-index", "--add", "--cacheinfo", f"160000,{commit},{path}")

    def checkout(self, target: Path) -> dict[bytes, bytes]:
        """HEAD's files as a checkout makes them; a symbolic link's content is its target."""
        self.git("clone", "-q", "--no-local", str(self.path), str(target), at="/")
        found = {}
        root = os.fsencode(target)
        for folder, names, files in os.walk(root):
            names[:] = [n for n in names if not (folder == root and n == b".git")]
            for name in [*files, *(n for n in names if os.path.islink(os.path.join(folder, n)))]:
                full = os.path.join(folder, name)
                relative = os.path.relpath(full, root)
                if os.path.islink(full):
                    found[relative] = os.readlink(full)
                else:
                    with open(full, "rb") as file:
                        found[relative] = file.read()
        return found


def grown(path: Path, object_format: str = "sha1") -> Repository:
    """A history with everything that paths and trees can do."""
    repository = Repository(path, object_format)
    repository.write(b"first", b"1\n")
    repository.write(b"dir/moved", b"to be renamed\n" * 20)
    repository.write(b"empty", b"")
    for odd in ODD:
        repository.write(odd, b"odd " + odd)
    os.symlink("first", repository.path / "link")
    repository.commit("root")
    repository.write(b"first", b"2\n")
    os.rename(repository.path / "dir/moved", repository.path / "renamed")
    repository.remove(ODD[0])
    repository.commit("change, rename, delete")
    repository.git("checkout", "-q", "-b", "side")
    repository.write(b"side/file", b"from the side\n")
    repository.commit("side 1")
    repository.write(b"side/file", b"from the side, again\n")
    repository.write(b"side/passing", b"is gone before the merge\n")
    repository.commit("side 2")
    repository.remove(b"side/passing")
    repository.commit("side 3")
    repository.git("checkout", "-q", "main")
    repository.write(b"main", b"x")
    repository.commit("main goes on")
    repository.git("merge", "-q", "--no-ff", "-m", "merge", "side")
    repository.submodule("module")
    repository.git("commit", "-q", "-m", "a submodule")
    repository.git("rm", "-q", "--cached", "first")
    repository.remove(b"first")
    repository.submodule("first")
    repository.git("commit", "-q", "-m", "a file becomes a submodule")
    repository.git("rm", "-q", "--cached", "module")
    repository.write(b"module", b"now a file")
    repository.git("add", "module")
    repository.git("commit", "-q", "-m", "a submodule becomes a file")
    repository.remove(b"main")
    repository.write(b"main/is/a/folder", b"now")
    repository.git("add", "main")
    repository.git("commit", "-q", "-m", "a file becomes a folder")
    repository.git("update-index", "--chmod=+x", "renamed")
    repository.git("commit", "-q", "-m", "mode alone")
    repository.write(ODD[0], b"back again")
    repository.git("add", "--", ODD[0])
    repository.git("commit", "-q", "-m", "add again")
    return repository


def replayed(history: GitHistory) -> tuple[dict[bytes, bytes], set[bytes]]:
    """The state after all operations, and every key ever touched. A delete of what is not there is an error."""
    state: dict[bytes, bytes] = {}
    ever = set()
    for key, token in history.operations:
        ever.add(key)
        if token is None:
            del state[key]
        else:
            state[key] = history.value(token)
    return state, ever


@pytest.mark.parametrize("bare", [False, True])
def test_operations_end_in_the_checked_out_tree(tmp_path: Path, bare: bool) -> None:
    """Renames, deletes, links, submodules, type changes, merges and odd path bytes end as a checkout has them."""
    repository = grown(tmp_path / "repo")
    expected = repository.checkout(tmp_path / "checkout")
    path = repository.path
    if bare:
        path = tmp_path / "bare.git"
        repository.git("clone", "-q", "--bare", str(repository.path), str(path), at="/")
    history = GitHistory(path)
    try:
        state, ever = replayed(history)
        end = history.expectation()
    finally:
        history.close()
    assert state == expected
    assert {key: blob_id(value, end.live[key]) for key, value in state.items()} == end.live
    assert end.sizes == {key: len(value) for key, value in state.items()}
    assert end.gone == ever - state.keys() == {b"dir/moved", b"first", b"main"}
    assert b"side/passing" not in ever, "commits of a merged branch are not on the first-parent line"


def test_order_and_count_follow_first_parent_history(tmp_path: Path) -> None:
    """Operations come oldest first, along the first parents."""
    history = GitHistory(grown(tmp_path / "repo").path)
    operations = history.operations
    keys = [key for key, _ in operations]
    assert keys.index(b"side/file") > keys.index(b"main")
    assert keys.count(b"side/file") == 1, "a merge is one change of each path"
    assert keys.count(b"renamed") == 2, "a change of mode alone writes the path again"
    assert (b"dir/moved", None) in [tuple(o) for o in operations], "a rename deletes the old path"
    assert isinstance(operations[0], HistoryOperation)


def test_sha256_repositories_are_compared_by_their_own_hash(tmp_path: Path) -> None:
    """A repository with SHA-256 ids replays and is expected by the same ids."""
    history = GitHistory(grown(tmp_path / "repo", "sha256").path)
    try:
        state, _ = replayed(history)
    finally:
        history.close()
    end = history.expectation()
    assert {key: blob_id(value, end.live[key]) for key, value in state.items()} == end.live
    assert len(next(iter(end.live.values()))) == 64


def test_a_shallow_clone_starts_from_its_oldest_commit(tmp_path: Path) -> None:
    """In a shallow clone the oldest commit counts as the root, and the end is the same tree."""
    repository = grown(tmp_path / "repo")
    expected = repository.checkout(tmp_path / "checkout")
    repository.git("clone", "-q", "--depth", "2", f"file://{repository.path}", str(tmp_path / "shallow"), at="/")
    history = GitHistory(tmp_path / "shallow")
    try:
        state, _ = replayed(history)
    finally:
        history.close()
    assert history.shallow
    assert state == expected


def test_the_environment_of_a_hook_does_not_redirect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GIT_DIR in the environment, as hooks have it, does not replace the repository that was named."""
    repository = grown(tmp_path / "repo")
    other = Repository(tmp_path / "other")
    monkeypatch.setenv("GIT_DIR", str(other.path / ".git"))
    assert GitHistory(repository.path).operations


def test_no_commit_no_repository_and_no_git_are_distinguished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reason for a missing history is a HistoryFault that names it."""
    empty = Repository(tmp_path / "empty")
    with pytest.raises(HistoryFault, match="no commit yet"):
        GitHistory(empty.path)
    (tmp_path / "plain").mkdir()
    with pytest.raises(HistoryFault, match="not a git repository"):
        GitHistory(tmp_path / "plain")
    with pytest.raises(HistoryFault, match="not a folder"):
        GitHistory(tmp_path / "nowhere")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HistoryFault, match="git is not installed"):
        GitHistory(empty.path)


def test_what_git_shows_first_is_reported_not_its_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repository of another owner, as containers often have it, is reported with git's reason, not with the last line
    of its advice."""
    repository = grown(tmp_path / "repo")
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    with pytest.raises(HistoryFault, match=r"^detected dubious ownership in repository at"):
        GitHistory(repository.path)


def test_a_reader_of_blobs_that_died_is_the_only_fault(tmp_path: Path) -> None:
    """When git itself was killed, each reader gets the error, and closing the history raises no other one: a broken
    pipe there would end the demo silently, as if its output had been closed."""
    repository = grown(tmp_path / "repo")
    blob = repository.git("rev-parse", "HEAD:renamed").decode().strip()
    history = GitHistory(repository.path)
    history.value(blob)
    assert history._blobs is not None
    history._blobs.kill()
    history._blobs.wait()
    for _ in range(2):
        with pytest.raises(HistoryFault, match="ended unexpectedly"):
            history.value(blob)
    history.close()


def test_a_damaged_repository_is_a_fault_not_a_short_history(tmp_path: Path) -> None:
    """A missing tree or blob stops the replay with the object's name instead of ending early."""
    repository = grown(tmp_path / "repo")
    blob = repository.git("rev-parse", "HEAD:renamed").decode().strip()
    tree = repository.git("rev-parse", "HEAD~5^{tree}").decode().strip()
    history = GitHistory(repository.path)
    objects = repository.path / ".git/objects"
    (objects / blob[:2] / blob[2:]).unlink()
    with pytest.raises(HistoryFault, match=blob):
        history.value(blob)
    history.close()
    (objects / tree[:2] / tree[2:]).unlink()
    with pytest.raises(HistoryFault, match=tree):
        _ = history.operations
