"""docs/properties.md prints the table of properties, whole and true."""

from __future__ import annotations

import json
import re
from pathlib import Path

from config.properties import ABSENT, FIXED, PROPERTIES

DOCS = Path(__file__).parents[2] / "docs" / "properties.md"
ROW = re.compile(r"^\| `([a-z_]+)` \| `(.*?)` \| (.*) \|$", re.MULTILINE)


def test_the_documented_properties_are_those_that_there_are() -> None:
    """Every property with its default, values and effect; every fixed one and every absent one with its reason."""
    found = {name: (json.loads(value), rest) for name, value, rest in ROW.findall(DOCS.read_text())}
    expected = {
        each.name: (each.default, f"{each.right} | {'' if each.acts else 'none: '}{each.meaning}")
        for each in PROPERTIES.values()
    }
    expected |= {name: (fixed.value, fixed.why) for name, fixed in FIXED.items()}
    expected |= dict(ABSENT)
    assert found == expected
