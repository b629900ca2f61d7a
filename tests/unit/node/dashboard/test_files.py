"""Claims about the dashboard's files: their types, that the wheel has all, and that pages load nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest

from isthmus.node.dashboard import files
from isthmus.node.dashboard.files import STATIC, dashboard_files

CHECKOUT = Path(__file__).parents[4]
UPLOT_SHA256 = "5dd9b3281aa64b461b42d9945f6adb2649d346502b12281a9ae0d46599a80eba"
"""Of dist/uPlot.esm.js in the npm package uplot 1.6.32."""


def test_files_have_types_and_digests() -> None:
    """Pages, styles and modules are known by their endings; descriptions and types for the checker are not served."""
    found = dashboard_files()
    assert found["index.html"].content_type == b"text/html; charset=utf-8"
    assert found["js/app.js"].content_type == b"text/javascript; charset=utf-8"
    assert found["css/base.css"].content_type == b"text/css; charset=utf-8"
    assert "README.md" not in found
    assert "js/types.d.ts" not in found
    assert len({file.etag for file in found.values()}) == len(found)


def test_a_file_that_is_too_large_stops_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file above the limit, or all of them above theirs, is a fault of the package."""
    monkeypatch.setattr(files, "FILE_BYTES_MAX", 10)
    monkeypatch.setattr(files, "ALL_BYTES_MAX", 15)
    (tmp_path / "a.js").write_bytes(b"x" * 10)
    assert list(dashboard_files(tmp_path)) == ["a.js"]
    (tmp_path / "b.js").write_bytes(b"x" * 6)
    with pytest.raises(AssertionError):
        dashboard_files(tmp_path)
    (tmp_path / "a.js").write_bytes(b"x" * 11)
    with pytest.raises(AssertionError, match=r"a\.js has 11 bytes"):
        dashboard_files(tmp_path)


def test_the_chart_library_is_the_published_one() -> None:
    """uPlot is byte for byte that of its npm package, so that its version and licence are known."""
    assert sha256((STATIC / "vendor" / "uPlot.esm.js").read_bytes()).hexdigest() == UPLOT_SHA256
    assert "MIT" in (STATIC / "vendor" / "uPlot-LICENSE.txt").read_text()


IMPORT = re.compile(r'^import\b[^;"]*"(\.[^"]+)";', re.MULTILINE)


def imports_of(name: str, body: bytes) -> set[str]:
    """The files that a module of ours imports, by their paths; it imports nothing but files."""
    text = body.decode()
    assert len(IMPORT.findall(text)) == len(re.findall(r"^import\b", text, re.MULTILINE)), name
    return {
        (STATIC / name).parent.joinpath(path).resolve().relative_to(STATIC.resolve()).as_posix()
        for path in IMPORT.findall(text)
    }


def test_every_import_and_link_is_a_file_and_every_file_is_reached() -> None:
    """Every file that modules import and the page links exists, and every file is used."""
    found = dashboard_files()
    wanted = {"index.html", *re.findall(r'(?:href|src)="/dashboard/([^"]+)"', found["index.html"].body.decode())}
    new = set(wanted)
    while new:
        assert not new - found.keys()
        modules = {name for name in new if name.endswith(".js") and not name.startswith("vendor/")}
        new = {path for name in modules for path in imports_of(name, found[name].body)} - wanted
        wanted |= new
    assert {name for name in found if not name.endswith(".txt")} == wanted


def test_pages_never_make_html_from_text() -> None:
    """No module of the project can turn text into HTML or code, and the page has no inline script or style."""
    banned = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|DOMParser|\.srcdoc"
    )
    for name, file in dashboard_files().items():
        if name.endswith(".js") and not name.startswith("vendor/"):
            assert not banned.search(file.body.decode()), name
    page = (STATIC / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\bon[a-z]+=", page)


def test_the_wheel_carries_the_files(tmp_path: Path) -> None:
    """A wheel of this checkout has every file that is served."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=CHECKOUT, check=True, capture_output=True, timeout=50)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert not {f"isthmus/node/dashboard/static/{name}" for name in dashboard_files()} - names
