"""Numbers of the command line that click would take and nobody can mean."""

from __future__ import annotations

import math
from typing import Any

import click


class Real(click.FloatRange):
    """A number in a range. `nan` lies in every range for click, since it is neither below nor above: a wait for so
    long never ends, and a lag above it is never found. So does `inf` where there is no bound."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number. Fails as click does."""
        number = super().convert(value, param, ctx)
        return number if math.isfinite(number) else self.fail(f"{value!r} is not a number", param, ctx)
