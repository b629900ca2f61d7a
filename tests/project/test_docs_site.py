"""The site of the documentation: it builds without a warning, and loads nothing from another host."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from docs.site_pages import ROOT_PAGES, with_lists

REPOSITORY: Final = Path(__file__).parents[2]


def built(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A run of MkDocs that fails at the first warning, such as a link that leads nowhere."""
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site), *arguments],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=50, check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    folder = tmp_path_factory.mktemp("site")
    done = built(folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site_has_every_page(site: Path) -> None:
    """The site has the pages of docs/ and those of the checkout's root; each is in the search index."""
    pages = {f"{path.stem}.html" for path in (REPOSITORY / "docs").glob("*.md")}
    pages |= {name.replace(".md", ".html") for name in ROOT_PAGES.values()}
    assert pages <= {path.name for path in site.glob("*.html")}
    entries = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    assert pages <= {entry["location"].partition("#")[0] or "index.html" for entry in entries}


def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    """No script, style, font or picture: a network without the internet shows the whole site."""
    loaded = re.compile(r'<(?:script|img|source)\b[^>]*\bsrc="(?:https?:)?//|<link\b[^>]*\bhref="(?:https?:)?//')
    assert [path.name for path in site.glob("*.html") if loaded.search(path.read_text())] == []
    styles = "\n".join(path.read_text() for path in site.rglob("*.css"))
    assert not re.search(r"(url\(|@import )[\"']?(https?:)?//", styles)


def test_links_out_of_the_documents_lead_to_copies(site: Path) -> None:
    """A sample that a page links to is in the site."""
    assert 'href="files/config/samples/two-clusters.toml"' in (site / "start.html").read_text()
    assert (site / "files/config/samples/two-clusters.toml").is_file()


def test_a_broken_link_fails_the_build(tmp_path: Path) -> None:
    """Links to a missing page and to a missing heading fail it."""
    config = (REPOSITORY / "mkdocs.yml").read_text()
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Here\n\n[page](gone.md), [heading](#gone)\n")
    plain = re.sub(r"\n(hooks|nav|extra_css):\n(  .*\n)+", "\n", config)
    (tmp_path / "mkdocs.yml").write_text(plain)
    done = built(tmp_path / "site", "--config-file", str(tmp_path / "mkdocs.yml"))
    assert done.returncode != 0
    assert "'gone.md'" in done.stderr
    assert "'#gone'" in done.stderr


def test_lists_are_those_of_github() -> None:
    """A list has a blank line before it and four columns per level; a number within a sentence is not a list; code is
    unchanged."""
    assert with_lists("Text:\n- one\n  more\n  - inner\n- two\n") == (
        "Text:\n\n- one\n    more\n    - inner\n- two\n"
    )  # fmt: skip
    assert with_lists("1. one\n   ```\n   - code\n   ```\n2. two\n") == (
        "1. one\n    ```\n    - code\n    ```\n2. two\n"
    )
    assert with_lists("It is refused with\n503. A move\n") == "It is refused with\n503. A move\n"
    assert with_lists("```\nText:\n- code\n```\n") == "```\nText:\n- code\n```\n"
