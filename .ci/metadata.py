#!/usr/bin/env python3
"""The long description of the wheel: README.md without links and pictures of the checkout.

A package index shows the text elsewhere, where `docs/http.md` leads nowhere. Hatchling calls this at each build; run as
a program it prints the text.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, Final

from hatchling.metadata.plugin.interface import MetadataHookInterface

ROOT: Final = Path(__file__).parents[1]
PICTURE: Final = re.compile(r"^!\[[^\]]*\]\((?!https?:)[^)]*\)\n+", re.MULTILINE)
LINK: Final = re.compile(r"\[([^\]]*)\]\((?!https?:)[^)]*\)")
NOTE: Final = "Pages that this text names are in `docs/` of the source archive.\n"


def long_description(readme: str) -> str:
    """The text with the words of links to the checkout alone, without pictures of it."""
    return LINK.sub(r"\1", PICTURE.sub("", readme)).rstrip() + "\n\n" + NOTE


class LongDescription(MetadataHookInterface):  # type: ignore[misc]
    """Sets the field `readme`, which pyproject.toml declares as dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """See hatchling."""
        text = long_description((ROOT / "README.md").read_text(encoding="utf-8"))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


if __name__ == "__main__":
    sys.stdout.write(long_description((ROOT / "README.md").read_text(encoding="utf-8")))
