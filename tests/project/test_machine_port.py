"""What runs in a node takes clocks, chance, threads, sockets and its own end from repl.machine."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]

PACKAGES: Final = ("repl", "aae", "queues", "sink", "config", "node")

TAKEN: Final = {
    "time": frozenset(),
    "threading": frozenset(("Thread", "excepthook")),
    "random": frozenset(("Random",)),
    "secrets": frozenset(("compare_digest",)),
    "uuid": frozenset(("UUID",)),
    "queue": frozenset(("Empty",)),
    "socket": frozenset(("gaierror", "socket")),
}
"""Module -> what may be used of it: types, exceptions, and what depends on its arguments alone; of `socket` also the
constants. What is in NOT_CALLED only names a type."""

NOT_CALLED: Final = frozenset((("threading", "Thread"), ("socket", "socket")))

OF_OTHERS: Final = {
    "os": frozenset(("_exit", "abort", "getpid", "getrandom", "times", "urandom")),
    "datetime": frozenset(("now", "today", "utcnow")),
    "date": frozenset(("today",)),
    "processors": frozenset(("TimeStamper",)),
}
"""Module or class -> what of it is taken from the machine."""

OUTSIDE: Final = {
    "repl/machine.py": "is the port",
    "repl/metastore/embedded_zookeeper.py": "runs in the supervisor, a process of its own, and waits for Java there",
    "aae/reconcile/": "jobs run in Spark, and a terminal",
    "aae/run_directory.py": "the node only takes names from it; jobs write the directories",
    "node/cli/": "commands run in a terminal",
    "node/demo/": "runs in a terminal, and starts nodes",
    "node/local/": "starts, stops and supervises nodes",
}
"""File or directory that does not run in a node -> why."""


def found_in(source: str) -> Iterator[str]:
    """`LINE: NAME` of everything that passes the port."""
    tree = ast.parse(source)
    modules: dict[str, str] = {}
    names: dict[str, tuple[str, str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {each.asname or each.name: each.name for each in node.names if each.name in TAKEN}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            module = node.module or ""
            for each in node.names:
                if each.name in OF_OTHERS.get(module, ()) or (
                    module in TAKEN and each.name not in TAKEN[module] and not each.name.isupper()
                ):
                    yield f"{node.lineno}: {module}.{each.name}"
                names[each.asname or each.name] = module, each.name

    def used(node: ast.expr) -> tuple[str, str] | None:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            return modules[node.value.id], node.attr
        return names.get(node.id) if isinstance(node, ast.Name) else None

    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            last = getattr(node.value, "attr", None) or getattr(node.value, "id", "")
            use = used(node)
            if node.attr in OF_OTHERS.get(last, ()):
                yield f"{node.lineno}: {last}.{node.attr}"
            elif use is not None and use[0] in TAKEN and use[1] not in TAKEN[use[0]] and not use[1].isupper():
                yield f"{node.lineno}: {'.'.join(use)}"
        elif isinstance(node, ast.Call):
            use = used(node.func)
            if use in NOT_CALLED or (use == ("random", "Random") and not node.args):
                yield f"{node.lineno}: {'.'.join(use)}()"


def modules() -> dict[str, Path]:
    """Path below the repository -> file."""
    found = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return {str(path.relative_to(ROOT)): path for path in found}


def is_outside(name: str) -> bool:
    """It does not run in a node."""
    return any(name.startswith(each) if each.endswith("/") else name == each for each in OUTSIDE)


def test_nothing_passes_the_port() -> None:
    """A module of a node that read a clock, drew a random number, began a thread or opened a socket by itself would do
    so in real time and unseen by the simulated world."""
    own = {name: path for name, path in modules().items() if not is_outside(name)}
    wrong = [f"{name}:{found}" for name, path in own.items() for found in found_in(path.read_text())]
    assert not wrong, "take these from isthmus.repl.machine: " + ", ".join(wrong)


@pytest.mark.parametrize("outside", OUTSIDE)
def test_every_exception_is_needed(outside: str) -> None:
    """An exception that covers nothing is removed."""
    assert any(
        any(found_in(path.read_text()))
        for name, path in modules().items()
        if (name.startswith(outside) if outside.endswith("/") else name == outside)
    )


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.sleep(1)",
        "import time as clock\nf(clock.monotonic)",
        "from time import monotonic",
        "from threading import Lock",
        "import threading\nthreading.Thread(target=f).start()",
        "from threading import Thread\nThread(target=f)",
        "from random import Random\nRandom()",
        "import random\nrandom.SystemRandom()",
        "import secrets\nsecrets.token_hex(4)",
        "import uuid\nuuid.uuid4()",
        "from queue import SimpleQueue",
        "import socket\nsocket.socket()",
        "import socket\nsocket.create_connection(x)",
        "import os\nos._exit(1)",
        "from os import urandom",
        "from datetime import datetime\ndatetime.now(UTC)",
        "import datetime\ndatetime.datetime.now()",
        "structlog.processors.TimeStamper()",
    ],
)
def test_what_passes_the_port_is_found(source: str) -> None:
    """However it is imported."""
    assert list(found_in(source))


def test_types_constants_and_what_is_seeded_may_be_used() -> None:
    """They depend on no machine."""
    source = """
import random, socket, threading, uuid
from queue import Empty
from random import Random
def f(sock: socket.socket, thread: threading.Thread, chance: Random) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    socket.socket.shutdown(sock, socket.SHUT_RDWR)
    Random(7), random.Random("seed"), uuid.UUID(bytes=bytes(16))
"""
    assert not list(found_in(source))
