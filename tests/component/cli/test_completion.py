"""Completion of live names, as a shell asks for them: through the command itself, with its variables."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from isthmus.node.cli import completion
from isthmus.node.cli.contexts import ClusterEntry, ContextEntry, ContextFile, save
from tests.support.cluster_answers import cluster_answer
from tests.support.fake_admin_listener import FakeAdminListener
from tests.support.threaded_node import running_node

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def shell(tmp_path: Path, listener: FakeAdminListener, monkeypatch: pytest.MonkeyPatch) -> FakeAdminListener:
    """A cluster with names, and a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    listener.respond("/admin/cluster", cluster_answer("east"))
    listener.respond("/admin/queues", {"queues": [{"name": "to-west"}, {"name": "to-north"}]})
    listener.respond("/admin/bucket-types", {"bucket_types": [{"bucket_type": "default"}, {"bucket_type": "maps"}]})
    listener.respond("/admin/fullsync?results=0", {"peers": [{"name": "west"}]})
    return listener


REMEMBERS: Final = "from isthmus.node.cli import completion; completion.FRESH_S = 600"
"""Two completions of a test follow each other, however busy the machine is."""

PATIENT: Final = f"{REMEMBERS}; completion.TIMEOUT_S = 30"
"""A listener of a test answers, too."""


def completed(line: str, setting: str = PATIENT, **variables: str) -> list[str]:
    """The completions that a shell offers at the end of a line."""
    words = line.split(" ")
    run = [sys.executable, "-c", f"import sys; {setting}; from isthmus.node.cli.main import main; sys.exit(main())"]
    asked = {"_ISTHMUS_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        run,
        env={**os.environ, **asked, **variables},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    return [each.partition(",")[2] for each in done.stdout.splitlines() if each]


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("isthmus queue show ", ["to-north", "to-west"]),
        ("isthmus queue show to-w", ["to-west"]),
        ("isthmus queue list --node east-", ["east-1", "east-2", "east-3"]),
        ("isthmus node drain east-1 east", ["east-1", "east-2", "east-3"]),
        ("isthmus bucket-type show m", ["maps"]),
        ("isthmus partition list --bucket-type d", ["default"]),
        ("isthmus fullsync run all --peer ", ["west"]),
        ("isthmus gaps to-n", ["to-north"]),
        ("isthmus sta", ["status"]),
        ("isthmus queue show --outp", ["--output"]),
    ],
)
def test_names_are_completed(shell: FakeAdminListener, line: str, names: list[str]) -> None:
    """Live ones of the cluster, and those of commands and options."""
    assert completed(line) == names


def test_a_node_answers_with_the_names_that_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every listing of LISTINGS, of a node with one of each: its real answers have the keys that completion reads."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    more = '[[queues]]\nname = "to-west"\n[[fullsync]]\nname = "west"\nqueue = "to-west"\nurls = "http://127.0.0.1:9"\n'
    lines = {
        "nodes": ("isthmus node drain ", ["n1"]),
        "queues": ("isthmus queue show ", ["to-west"]),
        "bucket types": ("isthmus bucket-type show ", ["default"]),
        "full-syncs": ("isthmus fullsync run all --peer ", ["west"]),
    }
    assert lines.keys() == completion.LISTINGS.keys()
    with running_node(tmp_path, more) as node:
        for line, names in lines.values():
            assert completed(line, ISTHMUS_ADMIN=f"http://127.0.0.1:{node.admin}") == names


def test_options_and_contexts_need_no_cluster(shell: FakeAdminListener, tmp_path: Path) -> None:
    """Options and contexts are completed from this machine's data."""
    file = tmp_path / "contexts.toml"
    entries = {"east": ClusterEntry(("http://127.0.0.1:9",)), "west": ClusterEntry(("http://127.0.0.1:9",))}
    save(file, ContextFile({"prod": ContextEntry(entries)}, "prod"))
    assert completed("isthmus option show replication.min", ISTHMUS_CONTEXTS=str(file)) == ["replication.min.isr"]
    assert completed("isthmus context use p", ISTHMUS_CONTEXTS=str(file)) == ["prod"]
    assert completed("isthmus lag --cluster w", ISTHMUS_CONTEXTS=str(file)) == ["west"]


def test_names_are_remembered_for_a_while(shell: FakeAdminListener, tmp_path: Path) -> None:
    """Several TABs cause one request; later the cluster is asked again; only the user can read the files."""
    assert completed("isthmus queue show to-w") == ["to-west"]
    shell.respond("/admin/queues", {"queues": [{"name": "new"}]})
    assert completed("isthmus queue show to-w") == ["to-west"]
    (file,) = (tmp_path / "cache" / "isthmus" / "names").iterdir()
    assert file.stat().st_mode & 0o077 == 0
    old = time.time() - 700
    os.utime(file, (old, old))
    assert completed("isthmus queue show ") == ["new"]


def test_a_cluster_that_does_not_answer_completes_nothing_and_says_nothing(shell: FakeAdminListener) -> None:
    """Neither a refused connection nor a silent node prints anything into the user's line, and the next TAB is
    quick."""
    assert completed("isthmus queue show ", ISTHMUS_ADMIN="http://127.0.0.1:9") == []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        admin = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert completed("isthmus queue show ", REMEMBERS, ISTHMUS_ADMIN=admin) == []
        silent.settimeout(0)
        while True:
            try:
                silent.accept()[0].close()
            except BlockingIOError:
                break
        assert completed("isthmus queue show ", REMEMBERS, ISTHMUS_ADMIN=admin) == []
        with pytest.raises(BlockingIOError):
            silent.accept()
    shell.respond("/admin/queues", b"<html>")
    assert completed("isthmus queue show ") == []


def test_nothing_is_left_of_an_answer_that_was_not_stored(
    shell: FakeAdminListener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that could not be put in place is removed at once, and one of a killed shell at the next TAB."""
    names = tmp_path / "cache" / "isthmus" / "names"
    names.mkdir(parents=True)
    left = names / "killed.new"
    left.touch()
    os.utime(left, (1, 1))

    def fail(_from: str, _to: Path) -> None:
        raise OSError("no space")

    monkeypatch.setattr(completion.os, "replace", fail)
    completion._remember(names / "one.json", ["n1"])
    assert list(names.iterdir()) == []
