"""Whether the text of a queue's filter can be one, told before a node runs: all that is wrong, in one line.

Pure, and only about form: what rules mean, and what a filter offers, is `queues.filters`.
"""

from __future__ import annotations

import re
from typing import Final

from config.texts import shown

FILTER_RULES: Final = "any, block_rtq, buckettype:T, bucketname:B, bucketprefix:P, or ! before one of the last three"

_FILTER_RULE = re.compile(r"any|block_rtq|!?\s*(buckettype|bucketname|bucketprefix):\S.*")
_BAD_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")


def check_filter(value: str) -> str:
    """The rules of a queue's filter, separated by commas; ValueError names all that are none, a stray percent sign, and
    rules that do not go together. What they mean is `queues.filters`' affair."""
    parts = [part.strip() for part in value.split(",")]
    wrong = [part for part in parts if _FILTER_RULE.fullmatch(part) is None]
    if wrong:
        what = "is no rule of a filter" if len(wrong) == 1 else "are no rules of a filter"
        raise ValueError(f"{', '.join(map(shown, wrong))} {what}; rules are {FILTER_RULES}")
    for part in parts:
        if _BAD_PERCENT.search(part) is not None:
            raise ValueError(f"{shown(part)}: names are percent-encoded in a filter; a percent sign is written as %25")
    if "block_rtq" in parts and len(parts) > 1:
        raise ValueError(f"{shown(value)}: block_rtq stands alone, it offers nothing in real time")
    if "any" in parts and any(part != "any" and not part.startswith("!") for part in parts):
        raise ValueError(f'{shown(value)}: "any" offers everything; beside it only negations (!...) change something')
    return value
