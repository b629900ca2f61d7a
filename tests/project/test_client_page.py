"""The pages and examples of the client run unchanged, and type checkers accept their code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import isthmus.client
from isthmus.client import Client
from isthmus.client.options import Options
from tests.support.threaded_node import ThreadedNode, running_node

REPOSITORY: Final = Path(__file__).parents[2]
REFERENCE: Final = (REPOSITORY / "docs" / "client.md").read_text()
TUTORIAL: Final = (REPOSITORY / "docs" / "first-application.md").read_text()


def code(page: str, kind: str) -> list[str]:
    """The blocks of code of a kind; "" for those without one."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    return [text for found, text in blocks if found == kind]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ThreadedNode]:
    """An empty node."""
    with running_node(tmp_path) as running:
        yield running


def run(*arguments: str, node: ThreadedNode) -> subprocess.CompletedProcess[str]:
    """A program with this Python, and the checkout on its path."""
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments], cwd=REPOSITORY, capture_output=True, text=True, timeout=50,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "ISTHMUS_HTTP": f"http://127.0.0.1:{node.http}"}, check=False,
    )  # fmt: skip


def test_the_first_application_prints_what_its_page_shows(node: ThreadedNode, tmp_path: Path) -> None:
    """The program runs unchanged on an empty cluster; the output of a second run differs only in the counter."""
    (program,), output = code(TUTORIAL, "python"), code(TUTORIAL, "")[0]
    (tmp_path / "first.py").write_text(program)
    assert "visits: 1\n" in output
    for expected in (output, output.replace("visits: 1\n", "visits: 2\n")):
        done = run(str(tmp_path / "first.py"), node=node)
        assert (done.stdout, done.stderr) == (expected, "")


def test_the_first_application_is_short() -> None:
    """The program has at most 48 lines, about a screen."""
    (program,) = code(TUTORIAL, "python")
    assert len([line for line in program.splitlines() if line.strip()]) <= 48


def test_samples_of_the_reference_run(node: ThreadedNode, tmp_path: Path) -> None:
    """Each block with a client over HTTP runs in a process of its own, in the order of the page, on one cluster; the
    same blocks run a second time."""
    samples = [sample for sample in code(REFERENCE, "python") if "http://" in sample]
    assert len(samples) == 4
    for sample in samples * 2:
        (tmp_path / "sample.py").write_text(re.sub(r"http://[\d.]+:8098", f"http://127.0.0.1:{node.http}", sample))
        done = run(str(tmp_path / "sample.py"), node=node)
        assert (done.returncode, done.stderr) == (0, "")


def test_the_reference_names_all_that_is_public() -> None:
    """Every name of the package, method of a client, and option; and no option that does not exist."""
    methods = {name for name in vars(Client) if not name.startswith("_")}
    for name in (*isthmus.client.__all__, *methods):
        assert re.search(rf"`[^`\n]*\b{name}\b", REFERENCE), name
    table = REFERENCE.partition("| option | default |")[2].partition("\n\n")[0]
    documented = set(re.findall(r"`(\w+)`", "\n".join(row.split("|")[1] for row in table.splitlines()[2:])))
    assert documented == set(Options.__annotations__)


def test_a_counter_in_threads(node: ThreadedNode) -> None:
    """examples/counter.py loses no increment."""
    done = run("examples/counter.py", f"http://127.0.0.1:{node.http}", node=node)
    assert (done.stdout, done.stderr) == ("8 threads, 25 increments each: 200\n", "")


def test_sessions_in_asyncio(node: ThreadedNode) -> None:
    """examples/sessions.py changes one session from ten tasks, and deletes it when it is over. Sessions of an
    application in the same cluster stay."""
    url = f"http://127.0.0.1:{node.http}"
    with Client(url) as application:
        application.put("sessions", "s", {"user": "bob", "used_s": 0})
    done = run("examples/sessions.py", url, node=node)
    assert (done.stdout, done.stderr) == ("ann has seen 10 pages\n1 session deleted\n", "")
    with Client(url) as application:
        assert application.exists("sessions", "s")


def test_an_import_in_batches(node: ThreadedNode, tmp_path: Path) -> None:
    """examples/import_csv.py imports a file of several batches, again without siblings, and names rows that fail."""
    file = tmp_path / "towns.csv"
    rows = [f"town-{at},{at * 10}" for at in range(2_345)]
    file.write_text("\n".join(["name,people", *rows]))
    url = f"http://127.0.0.1:{node.http}"
    for _ in range(2):
        done = run("examples/import_csv.py", str(file), "towns", url, node=node)
        assert (done.stdout, done.stderr) == ("2345 of 2345 rows imported into towns\n", "")
    with Client(url) as reader:
        assert reader.get("towns", "town-77").value == {"name": "town-77", "people": "770"}
    file.write_text(f"name,people\n{'x' * 5_000},1\nathens,2\n")
    done = run("examples/import_csv.py", str(file), "towns", url, node=node)
    assert (done.returncode, done.stdout) == (1, "1 of 2 rows imported into towns\n")
    assert done.stderr.startswith("line 2, " + "x" * 5_000 + ": bad-")


def test_an_import_of_a_file_with_bad_rows(node: ThreadedNode, tmp_path: Path) -> None:
    """examples/import_csv.py names each row with too few or too many columns, without a key, with bytes that are not
    UTF-8, or with a field that is too long, and imports the others. The last of several rows with the same key stays,
    without siblings."""
    file = tmp_path / "towns.csv"
    file.write_bytes(
        b"\xef\xbb\xbfname,people\nathens,1\nfew\n,3\nmany,4,5\nbytes,\xff\nathens,7\nlong,"
        + b"x" * 200_000
        + b"\nsparta,9\nathens,10\n"
    )
    url = f"http://127.0.0.1:{node.http}"
    done = run("examples/import_csv.py", str(file), "towns", url, node=node)
    assert (done.returncode, done.stdout) == (1, "4 of 9 rows imported into towns\n")
    failed = [line.partition(":")[0].partition(",")[0] for line in done.stderr.splitlines()]
    assert sorted(failed) == ["line 3", "line 4", "line 5", "line 6", "line 8"]
    with Client(url) as reader:
        assert sorted(reader.list_keys("towns")) == ["athens", "sparta"]
        assert reader.get("towns", "athens").value == {"name": "athens", "people": "10"}
    file.write_bytes(b"")
    done = run("examples/import_csv.py", str(file), "towns", url, node=node)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 of 0 rows imported into towns\n", "")


TYPED: Final = '''
from typing import Any, assert_type

from isthmus.client import AsyncClient, Client, Context, Delete, NotFound, Put, Sibling, StoredObject, Updated, Written
from isthmus.client import newest


def largest(siblings: list[Sibling]) -> Sibling:
    """A resolver gets any Sequence, not just a list."""
    return siblings[0]


async def use(client: Client, tasks: AsyncClient) -> None:
    assert_type(client.get("b", "k"), StoredObject)
    assert_type(client.find("b", b"k"), StoredObject | None)
    assert_type(client.put("b", "k", {"a": 1}, context=client.get("b", "k")), Written)
    assert_type(client.update("b", "k", lambda value: value + 1, default=0, resolve=newest), Updated)
    assert_type(client.delete("b", "k", context=Context(b"")), bool)
    assert_type(client.put_many("b", {"k": 1}), list[Written])
    assert_type(client.put_many("b", [Put("k", 1), Delete("k")]), list[Written])
    assert_type(client.get_many("b", ["k", b"k"]), list[StoredObject | None])
    assert_type(client.properties(), dict[str, Any])
    assert_type([name for name in client.list_keys("b")], list[str])
    assert_type(await tasks.get("b", "k"), StoredObject)
    assert_type(await tasks.update("b", "k", lambda value: value), Updated)
    assert_type([name async for name in tasks.list_buckets()], list[str])
    try:
        client.get("b", "k")
    except NotFound as error:
        assert_type(error.context, Context | None)
    client.get("b", 5)
    client.get("b", "k", resolve=largest)
    client.put("b", "k", 1, contxt=None)
    Client("http://a:1", timeout=5)
    Client("http://a:1", timeout_s="5")
    client.update("b", "k", 5)
    tasks.get("b", "k").value
'''

WRONG: Final = (
    'Argument 2 to "get" of "Client" has incompatible type "int"',
    'Argument "resolve" to "get" of "Client" has incompatible type',
    'Unexpected keyword argument "contxt" for "put" of "Client"',
    'Unexpected keyword argument "timeout" for "Client"',
    'Argument "timeout_s" to "Client" has incompatible type "str"',
    'Argument 3 to "update" of "Client" has incompatible type "int"',
    '"Coroutine[Any, Any, StoredObject]" has no attribute "value"',
)


@pytest.mark.timeout(300)
def test_the_types_of_the_client_are_what_callers_see(tmp_path: Path) -> None:
    """mypy in strict mode knows what each call returns, and finds each wrong one, and nothing else; the examples have
    no errors, either."""
    sample = tmp_path / "typed.py"
    sample.write_text(TYPED)
    examples = sorted(str(path) for path in (REPOSITORY / "examples").glob("*.py"))
    assert len(examples) == 3
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(sample), *examples],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    found = [line for line in (done.stdout + done.stderr).splitlines() if ": error:" in line]
    assert len(found) == len(WRONG), "\n".join(found)
    for line, wanted in zip(found, WRONG, strict=True):
        assert wanted in line
