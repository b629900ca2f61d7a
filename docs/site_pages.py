"""A hook of MkDocs: pages of the checkout's root, and links out of docs/, in the site of the documentation.

Pages are written for GitHub, where links are relative to the checkout and lists need no blank line before them. The
site has the root's pages under other names, copies of the samples and other files that pages link to, and the lists as
MkDocs needs them. `make docs-site` builds it; broken links are errors.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from mkdocs.structure.files import File, Files

CHECKOUT: Final = Path(__file__).parents[1]

ROOT_PAGES: Final[Mapping[str, str]] = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security-policy.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
}
"""Page of the checkout's root -> its name in the site."""

COPIES: Final = "files"
"""Folder of the site for copies of the checkout's files that pages link to."""

_LINK: Final = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)#\s]+)(?=[)#])")
_FENCE: Final = re.compile(r"^\s*```")
_ITEM: Final = re.compile(r"^( *)([-*]|\d+\.) +(?=\S)")


def on_files(files: Files, config: Any) -> Files:
    """Add the root's pages, and the files outside of docs/ that pages link to."""
    for source, name in ROOT_PAGES.items():
        text = (CHECKOUT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=site_text(text, source)))
    linked = {target for page in (CHECKOUT / "docs").glob("*.md") for target in outside(page)}
    linked |= {target for name in ROOT_PAGES for target in outside(CHECKOUT / name)}
    for target in sorted(linked):
        if (CHECKOUT / target).is_file():
            files.append(File.generated(config, site_name(target), abs_src_path=str(CHECKOUT / target)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links and lists of a page of docs/ as the site has them."""
    if page.file.src_uri in ROOT_PAGES.values():
        return markdown
    return site_text(markdown, f"docs/{page.file.src_uri}")


def outside(page: Path) -> set[str]:
    """Files of the checkout that a page links to and that are no pages, relative to the checkout."""
    folder = page.parent.relative_to(CHECKOUT).as_posix()
    found = {posixpath.normpath(posixpath.join(folder, link)) for link in _LINK.findall(page.read_text("utf-8"))}
    return {target for target in found if target not in ROOT_PAGES and not target.startswith("docs/")}


def site_name(target: str) -> str:
    """The name in the site of a file of the checkout. A copy of a page is text: its own links would lead nowhere."""
    if target in ROOT_PAGES:
        return ROOT_PAGES[target]
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    return f"{COPIES}/{target}{'.txt' if target.endswith('.md') else ''}"


def site_text(text: str, source: str) -> str:
    """A page's text for the site: its links lead within the site, and lists are MkDocs'. `source` is its place in the
    checkout."""
    folder = posixpath.dirname(source)

    def moved(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[1]))
        return site_name(target)

    return with_lists("\n".join(_LINK.sub(moved, line) for line in text.splitlines()) + "\n")


def with_lists(text: str) -> str:
    """Lists with a blank line before them, and what belongs to an item indented by four columns a level."""
    out: list[str] = []
    depths: list[int] = []  # columns at which the text of the open items begins
    fenced = False
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        item = None if fenced or is_text(line, out) else _ITEM.match(line)
        if line.strip() and not fenced:
            while depths and indent < depths[-1]:
                depths.pop()
        if item is not None:
            if not depths and out and out[-1].strip() and not _ITEM.match(out[-1]) and not in_list(out):
                out.append("")
            body = line[item.end() :]
            out.append(f"{' ' * 4 * len(depths)}{item[2]} {body}")
            depths.append(item.end())
        elif line.strip():
            out.append(" " * 4 * len(depths) + line[depths[-1] if depths else 0 :])
        else:
            out.append(line)
        if _FENCE.match(line):
            fenced = not fenced
    return "\n".join(out) + "\n"


def is_text(line: str, before: list[str]) -> bool:
    """True if a line that begins with a number and a dot goes on with a sentence: a list within a paragraph begins with
    1."""
    number = re.match(r"\s*(\d+)\. ", line)
    follows = bool(before) and bool(before[-1].strip())
    return number is not None and number[1] != "1" and follows and not in_list(before)


def in_list(lines: list[str]) -> bool:
    """True if the last paragraph of `lines` belongs to an item of a list."""
    for line in reversed(lines):
        if not line.strip():
            return False
        if _ITEM.match(line):
            return True
    return False
