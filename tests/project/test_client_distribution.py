"""The client's distribution: it needs nothing of a node, and can be installed alone, beside `isthmus`, or in another
folder."""

from __future__ import annotations

import inspect
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any, Final

import pytest
from packaging.requirements import Requirement

from isthmus.client import AsyncClient, Client
from tests.support.threaded_node import ThreadedNode, running_node

REPOSITORY: Final = Path(__file__).parents[2]
NODE_PACKAGES: Final = (
    "apscheduler", "click", "cryptography", "httptools", "kazoo", "msgspec", "numpy", "plyvel", "prometheus_client",
    "psutil", "pyarrow", "pyspark", "requests", "rich", "structlog", "tomli_w", "urllib3", "uvicorn", "uvloop",
    "zstandard", "isthmus.aae", "isthmus.config", "isthmus.node", "isthmus.queues", "isthmus.repl", "isthmus.sink",
)  # fmt: skip

USE: Final = """
import asyncio, sys
from isthmus.client import AsyncClient, Client
with Client(sys.argv[1]) as client:
    client.update("installed", "count", lambda count: count + 1, default=0)
    client.overwrite("installed", "a", 1)
    client.put_many("installed", {"b": 1})
async def main():
    async with AsyncClient(sys.argv[1]) as client:
        assert (await client.get("installed", "count")).value >= 1
        assert [key async for key in client.list_keys("installed", prefix="a")] == ["a"]
asyncio.run(main())
print("used")
"""


def built(folder: Path, project: Path) -> Path:
    """The wheel of a project."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=project, capture_output=True, timeout=50, check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheels of this checkout, by distribution."""
    return {
        "isthmus": built(tmp_path_factory.mktemp("node"), REPOSITORY),
        "isthmus-client": built(tmp_path_factory.mktemp("client"), REPOSITORY / "client"),
    }


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadedNode]:
    """A node for the installed clients."""
    with running_node(tmp_path_factory.mktemp("running")) as running:
        yield running


def closure(requirements: list[str]) -> set[str]:
    """The distributions that these ask for, directly or not."""
    found: set[str] = set()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        wanted = waiting.pop()
        if wanted.name in found:
            continue
        found.add(wanted.name)
        for text in distribution(wanted.name).requires or []:
            inner = Requirement(text)
            extras = wanted.extras or {""}
            if inner.marker is None or any(inner.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(inner)
    return found


class Environment:
    """A Python environment with the client's dependencies, as its wheel declares them, and nothing else."""

    def __init__(self, folder: Path, requirements: list[str]) -> None:
        venv.create(folder, with_pip=False, symlinks=True)
        self.python = folder / "bin" / "python"
        (self.packages,) = folder.glob("lib/python3.*/site-packages")
        for name in closure(requirements):
            for file in distribution(name).files or []:
                target = self.packages / file
                if ".." not in file.parts and "__pycache__" not in file.parts:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(str(distribution(name).locate_file(file)), target)

    def run(self, script: str, *arguments: str, folder: Path | None = None) -> str:
        """The output of a script; `folder` is first on its path."""
        given = {} if folder is None else {"PYTHONPATH": str(folder)}
        done = subprocess.run(
            [str(self.python), "-B", "-W", "error", "-c", script, *arguments],
            cwd=self.packages.parents[2], env=given, capture_output=True, text=True, timeout=50, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout


def client_project() -> dict[str, Any]:
    """The table [project] of the client."""
    project: dict[str, Any] = tomllib.loads((REPOSITORY / "client" / "pyproject.toml").read_text())["project"]
    return project


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """A new one."""
    return Environment(tmp_path / "environment", client_project()["dependencies"])


def test_importing_the_client_imports_nothing_of_a_node() -> None:
    """`import isthmus.client` loads no other package of Isthmus, and no package that only nodes need."""
    script = "import isthmus.client, sys; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "isthmus.client.sync_client" in loaded
    assert [name for name in NODE_PACKAGES if name in loaded] == []


def test_the_wheels_have_no_common_file(wheels: dict[str, Path]) -> None:
    """Either can be uninstalled without breaking the other; the client's wheel has its modules, its types and the
    license."""
    names = {name: set(zipfile.ZipFile(wheel).namelist()) for name, wheel in wheels.items()}
    assert not names["isthmus"] & names["isthmus-client"]
    assert any(name.endswith("licenses/LICENSE") for name in names["isthmus-client"])
    own = {name for name in names["isthmus-client"] if ".dist-info/" not in name}
    modules = {f"isthmus/client/{path.name}" for path in (REPOSITORY / "client").glob("*.py")}
    assert own == modules | {"isthmus/client/py.typed"}
    assert "isthmus/__init__.py" in names["isthmus"]


def test_both_distributions_have_one_version() -> None:
    """Both are released together."""
    projects = [REPOSITORY / "pyproject.toml", REPOSITORY / "client" / "pyproject.toml"]
    assert len({tomllib.loads(path.read_text())["project"]["version"] for path in projects}) == 1


def test_the_client_has_the_license_as_a_file() -> None:
    """The same text as the repository's; a link would lead nowhere in the unpacked source archive."""
    own = REPOSITORY / "client" / "LICENSE"
    assert not own.is_symlink()
    assert own.read_bytes() == (REPOSITORY / "LICENSE").read_bytes()


def test_the_client_is_locked_within_its_ranges() -> None:
    """Its dependencies, and theirs, are in requirements.lock."""
    lines = (REPOSITORY / "requirements.lock").read_text().splitlines()
    pinned = dict(line.partition(";")[0].strip().split("==") for line in lines if "==" in line.partition(";")[0])
    dependencies = client_project()["dependencies"]
    for wanted in map(Requirement, dependencies):
        assert wanted.specifier.contains(pinned[wanted.name])
    assert {name.replace("_", "-") for name in closure(dependencies)} <= set(pinned)


def test_the_client_works_alone(wheels: dict[str, Path], environment: Environment, node: ThreadedNode) -> None:
    """It works in an environment with its declared dependencies and nothing else."""
    zipfile.ZipFile(wheels["isthmus-client"]).extractall(environment.packages)
    assert environment.run(USE, f"http://127.0.0.1:{node.http}") == "used\n"
    assert environment.run("import isthmus; print(getattr(isthmus, '__file__', None))") == "None\n"


@pytest.mark.parametrize("order", [("isthmus", "isthmus-client"), ("isthmus-client", "isthmus")])
def test_both_work_together(
    wheels: dict[str, Path], environment: Environment, node: ThreadedNode, order: tuple[str, str]
) -> None:
    """They can be installed in either order; after one of them is removed the other still works."""
    for name in order:
        zipfile.ZipFile(wheels[name]).extractall(environment.packages)
    assert environment.run(USE, f"http://127.0.0.1:{node.http}") == "used\n"
    key = "from isthmus.repl.model.keys import key_hash; print(key_hash(b'a', b'b') > 0)"
    assert environment.run(key) == "True\n"
    shutil.rmtree(environment.packages / "isthmus" / "client")
    assert environment.run(key) == "True\n"
    zipfile.ZipFile(wheels["isthmus-client"]).extractall(environment.packages)
    for name in zipfile.ZipFile(wheels["isthmus"]).namelist():
        (environment.packages / name).unlink()
    assert environment.run(USE, f"http://127.0.0.1:{node.http}") == "used\n"


@pytest.mark.parametrize("first", ["isthmus", "isthmus-client"])
def test_both_work_from_different_folders(
    wheels: dict[str, Path], environment: Environment, node: ThreadedNode, tmp_path: Path, first: str
) -> None:
    """For example one folder of the system and one of the user; also if `isthmus` is a zip file, as on Spark's
    workers."""
    (second,) = set(wheels) - {first}
    zipfile.ZipFile(wheels[second]).extractall(environment.packages)
    zipfile.ZipFile(wheels[first]).extractall(tmp_path / "first")
    both = USE + "import isthmus.repl.model.keys\n"
    assert environment.run(both, f"http://127.0.0.1:{node.http}", folder=tmp_path / "first") == "used\n"
    if first == "isthmus":
        zipped = shutil.copy(wheels[first], tmp_path / "isthmus.zip")
        assert environment.run(both, f"http://127.0.0.1:{node.http}", folder=Path(zipped)) == "used\n"


def signature(client: type[Any], name: str) -> str:
    """Parameters of a method, with the types that differ by nature made equal."""
    shown = str(inspect.signature(getattr(client, name)))
    return shown.replace("AsyncIterator", "Iterator").replace("Any | Awaitable[Any]", "Any")


def test_both_clients_have_the_same_methods() -> None:
    """Parameters, defaults and results are the same."""
    names = {
        client: {name for name in vars(client) if not name.startswith("_")} - {"close"}
        for client in (Client, AsyncClient)
    }
    assert names[Client] == names[AsyncClient]
    for name in names[Client]:
        assert signature(Client, name) == signature(AsyncClient, name)
