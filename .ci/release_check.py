#!/usr/bin/env python3
"""Checks wheels and source archives as a stranger would use them: `make release-check`.

Builds both, of nodes and of the client, and installs the wheels into fresh environments, one for each extra. Commands
run in an empty folder, without the checkout, a compiler or a Java on the path. Each step is printed; the first one that
fails ends the check with code 1. The last lines are the sizes of the environments.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from email.parser import Parser
from pathlib import Path
from time import monotonic
from typing import Final

from packaging.requirements import Requirement

ROOT: Final = Path(__file__).parents[1]

LEFT_OUT: Final = (
    "cc",
    "c++",
    "gcc",
    "g++",
    "clang",
    "java",
    "cpp",
    "c89",
    "c99",
    "x86_64-linux-gnu-g",
    "isthmus",
    "javac",
)
"""Beginnings of names of programs that a stranger's machine may lack: compilers, Java, and another Isthmus."""

OPERATIONS: Final = 1_500
"""Operations of the demo: enough for kills under load."""

TIMEOUT_S: Final = 900
"""Limit of a step. The longest, PySpark's download and installation, takes three minutes."""


class CheckFailed(Exception):
    """A step whose result is not as it should be."""


class Stranger:
    """A machine with the wheel alone: its folder, its path, and its environments."""

    def __init__(self, folder: Path, python: str, wheel: Path) -> None:
        self.folder, self.python, self.wheel = folder, python, wheel
        self.sizes_mb: dict[str, int] = {}
        self._tools = folder / "tools"
        self._tools.mkdir()
        for place in ("/usr/bin", "/bin"):
            for tool in Path(place).iterdir():
                link = self._tools / tool.name
                if not tool.name.startswith(LEFT_OUT) and not link.is_symlink():
                    link.symlink_to(tool)

    def environment(self) -> dict[str, str]:
        """Without what leads to the checkout, to its environment, or to a Java."""
        left_out = ("PYTHONPATH", "JAVA_HOME", "VIRTUAL_ENV", "SPARK_HOME", "CC", "CXX")
        kept = {name: value for name, value in os.environ.items() if name not in left_out}
        return kept | {"PATH": str(self._tools), "PYTHONDONTWRITEBYTECODE": "1"}

    def install(self, name: str, *wanted: str, then: str = "", wheel: Path | None = None) -> None:
        """A new environment with the wheel, or another one, and `wanted`; `then` is installed in a second step, by
        name."""
        wheel = wheel or self.wheel
        self.run(f"{name}: a new environment", [self.python, "-m", "venv", str(self.folder / name)])
        pip = [str(self.folder / name / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        self.run(f"{name}: pip install {wheel.name} {' '.join(wanted)[:60]}", [*pip, str(wheel), *wanted])
        if then:
            self.run(f"{name}: pip install '{then}'", [*pip, then])
        done = subprocess.run(["du", "-sm", str(self.folder / name)], capture_output=True, text=True, check=True)
        self.sizes_mb[name] = int(done.stdout.split()[0])

    def remove(self, name: str) -> None:
        """Delete an environment; its size stays known."""
        shutil.rmtree(self.folder / name)

    def isthmus(self, name: str, *words: str, code: int = 0, says: str = "") -> str:
        """The output of a command; its exit code must be `code`, and its output or errors must contain `says`."""
        program = [str(self.folder / name / "bin" / "isthmus"), *words]
        return self.run(f"{name}: isthmus {' '.join(words)[:90]}", program, code=code, says=says)

    def run(self, title: str, command: Sequence[str], *, code: int = 0, says: str = "") -> str:
        """Run a step in the empty folder."""
        work = self.folder / "work"
        work.mkdir(exist_ok=True)
        return step(title, command, work, self.environment(), code=code, says=says)


def step(
    title: str, command: Sequence[str], folder: Path, environment: Mapping[str, str], *, code: int = 0, says: str = ""
) -> str:
    """Run a command and return its output. Raises CheckFailed with what it printed."""
    began = monotonic()
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if done.returncode != code or says not in done.stdout + done.stderr or "Traceback" in done.stderr:
        raise CheckFailed(
            f"{title}: exit code {done.returncode}, {code} expected"
            + f", with {says!r}" * bool(says)
            + f"\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        )
    sys.stdout.write(f"  {title}  ({monotonic() - began:.0f} s)\n")
    sys.stdout.flush()
    return done.stdout


def release_files(version: str) -> dict[str, tuple[str, str]]:
    """Distribution -> names of its wheel and its source archive."""
    return {
        name: (f"{file}-{version}-py3-none-any.whl", f"{file}-{version}.tar.gz")
        for name, file in (("isthmus", "isthmus"), ("isthmus-client", "isthmus_client"))
    }


def build(folder: Path) -> tuple[Path, Path]:
    """The wheel and the source archive of the nodes."""
    pages = ("README.md", "LICENSE", "CHANGELOG.md", "docs/http.md", "requirements.lock")
    wheel, archive = build_distribution("isthmus", ROOT, folder, pages)
    check_wheel(zipfile.ZipFile(wheel))
    return wheel, archive


def build_distribution(name: str, project: Path, folder: Path, pages: Sequence[str]) -> tuple[Path, Path]:
    """The wheel and the source archive of a project, and the same wheel again from the archive, which has `pages`."""
    plain = dict(os.environ)
    hatchling = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    step(f"{name}: wheel and source archive", hatchling, project, plain)
    (wheel,), (archive,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    version = Parser().parsestr(metadata_of(wheel))["Version"]
    if (wheel.name, archive.name) != release_files(version)[name]:
        raise CheckFailed(f"the files have other names: {wheel.name}, {archive.name}")
    shutil.unpack_archive(archive, folder / "source")
    (source,) = (folder / "source").iterdir()
    for page in pages:
        if not (source / page).is_file():
            raise CheckFailed(f"the source archive of {name} lacks {page}")
    again = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "again")]
    step(f"{name}: a wheel from the source archive", again, source, plain)
    (second,) = (folder / "again").glob("*.whl")
    different = set(zipfile.ZipFile(wheel).namelist()) ^ set(zipfile.ZipFile(second).namelist())
    if different:
        raise CheckFailed(f"the wheel of the source archive of {name} has other files: {sorted(different)[:10]}")
    return wheel, archive


def metadata_of(wheel: Path) -> str:
    """The text of a wheel's METADATA."""
    archive = zipfile.ZipFile(wheel)
    (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
    return archive.read(name).decode()


def check_wheel(wheel: zipfile.ZipFile) -> None:
    """The license, py.typed, and metadata that an index can show; nothing but the package."""
    names = wheel.namelist()
    tops = {name.partition("/")[0] for name in names}
    (info,) = (top for top in tops if top.endswith(".dist-info"))
    if tops != {"isthmus", info} or any("/tests/" in name for name in names):
        raise CheckFailed(f"the wheel has more than the package: {sorted(tops)}")
    for wanted in ("isthmus/py.typed", f"{info}/licenses/LICENSE"):
        if wanted not in names:
            raise CheckFailed(f"the wheel lacks {wanted}")
    metadata = Parser().parsestr(wheel.read(f"{info}/METADATA").decode())
    if metadata["License-Expression"] != "Apache-2.0" or "](docs/" in str(metadata.get_payload()):
        raise CheckFailed("the wheel's metadata lacks the license, or its description has links of the checkout")


def oldest(wheel: Path, extra: str, python_version: str) -> list[str]:
    """The lower end of the range of each package that the base and an extra ask for, as pins."""
    pins = []
    for text in Parser().parsestr(metadata_of(wheel)).get_all("Requires-Dist", []):
        wanted = Requirement(text)
        if wanted.marker is None or wanted.marker.evaluate({"extra": extra, "python_version": python_version}):
            (least,) = (each.version for each in wanted.specifier if each.operator == ">=")
            pins.append(f"{wanted.name}=={least}")
    return pins


def demo(machine: Stranger, name: str, folder: Path) -> None:
    """The demo with kills, kept afterwards: both clusters must be equal."""
    words = ("--operations", str(OPERATIONS), "--rate", "60", "--keep", "--dir", str(folder))
    machine.isthmus(name, "demo", *words, says="equal: both clusters hold exactly the content")


def url_of(machine: Stranger, name: str, folder: Path, node: str) -> str:
    """The address for clients of a node of the kept demo, from its config file."""
    shown = json.loads(machine.isthmus(name, "config", "show", str(folder / node / "node.toml"), "-o", "json"))
    (address,) = (json.loads(row["value"]) for row in shown["values"] if row["key"] == "listen.http")
    return f"http://{address}"


CLIENT: Final = """
import sys
from isthmus.client import Client
with Client(sys.argv[1:]) as client:
    print("count:", client.update("release-check", "count", lambda count: count + 1, default=0).value)
"""


def build_client(folder: Path) -> tuple[Path, Path]:
    """The wheel and the source archive of the Python client."""
    return build_distribution("isthmus-client", ROOT / "client", folder, ("README.md", "LICENSE"))


def use_client(machine: Stranger, name: str, url: str, count: int) -> None:
    """Update a counter of the kept demo."""
    python = str(machine.folder / name / "bin" / "python")
    machine.run(f"{name}: the Python client", [python, "-c", CLIENT, url], says=f"count: {count}")


def check(folder: Path, python: str) -> dict[str, int]:
    """All steps; environment -> its megabytes. Raises CheckFailed."""
    wheel, archive = build(folder / "dist")
    client, client_archive = build_client(folder / "dist-client")
    machine = Stranger(folder, python, wheel)

    machine.install("base")
    machine.isthmus("base", "version", says="extra local: pip install 'isthmus[local]'")
    machine.isthmus("base", "--help", says="reconcile")
    machine.isthmus("base", "demo", code=5, says="pip install 'isthmus[local]'")
    machine.isthmus("base", "reconcile", "stats", "--url", "http://127.0.0.1:1", code=5, says="'isthmus[spark]'")
    machine.remove("base")

    machine.install("local", then="isthmus[local]")
    machine.isthmus("local", "version", says="extra local: installed")
    kept = folder / "clusters"
    demo(machine, "local", kept)
    try:
        machine.install("spark", then="isthmus[spark]")
        left, right = (url_of(machine, "local", kept, node) for node in ("east-1", "west-1"))
        sides = ("--left", left, "--right", right, "--dir", str(folder / "runs"))
        machine.isthmus("spark", "reconcile", "stats", "--url", left, says="OBJECTS")
        machine.isthmus("spark", "reconcile", "run", *sides, says="equal")
        machine.install("client", wheel=client)
        use_client(machine, "client", left, 1)
        machine.install("base-and-client", str(client))
        use_client(machine, "base-and-client", left, 2)
    finally:
        machine.isthmus("local", "local", "down", "--dir", str(kept))
    machine.remove("spark")
    machine.remove("local")

    version = machine.run(
        "version of Python", [python, "-c", "import sys; print('3.%d' % sys.version_info[1])"]
    ).strip()
    if version in ("3.11", "3.12"):  # the oldest versions have no wheels for later ones
        machine.install("oldest", f"{wheel}[local]", *oldest(wheel, "local", version))
        demo(machine, "oldest", folder / "old-clusters")
        machine.isthmus("oldest", "local", "down", "--dir", str(folder / "old-clusters"))
    (ROOT / "dist").mkdir(exist_ok=True)
    for built in (wheel, archive, client, client_archive):
        shutil.copy(built, ROOT / "dist")
    return machine.sizes_mb


def main() -> int:
    """Run the check; its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys._base_executable, help="the Python of the environments")
    parser.add_argument("--dir", type=Path, help="where they are made, instead of a temporary folder; kept")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="isthmus-release-")) if given.dir is None else given.dir.absolute()
    folder.mkdir(exist_ok=True)
    try:
        sizes_mb = check(folder, given.python)
    except CheckFailed as error:
        sys.stderr.write(f"release-check: {error}\n")
        return 1
    finally:
        if given.dir is None:
            shutil.rmtree(folder, ignore_errors=True)
    sys.stdout.write("\nenvironment      MB (du -sm, with pip)\n")
    for name, size_mb in sizes_mb.items():
        sys.stdout.write(f"{name:<15} {size_mb:>4}\n")
    sys.stdout.write("\ndist/ has wheel and source archive of isthmus and of its client\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
