"""The table of a described noun (`node.nouns`)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import msgspec

from isthmus.node.cli.output import Column, Row, TableSpec, milliseconds, moment
from isthmus.node.nouns.description import TableColumn, columns_of


def table_of(row: type[msgspec.Struct], *, without: Collection[str] = (), **cells: Callable[[Row], Any]) -> TableSpec:
    """The columns that the description of a noun's rows gives them, in the order of the fields, but for some.

    `cells`: field -> what its cell has, where a command joins it from other fields."""
    described = [
        (name, column._replace(shown=cells.get(name, column.shown)))
        for name, column in columns_of(row)
        if name not in without
    ]
    return TableSpec(*(_column(name, each) for name, each in described))


def _column(name: str, described: TableColumn) -> Column:
    def value(row: Row) -> Any:
        if described.shown is not None:
            return described.shown(row)
        found = row.get(name)
        if found is None or found == "":
            return "" if described.nothing and name in row else found
        return moment(found) if described.moment else milliseconds(found) if described.duration else found

    heading = described.heading or name.replace("_", " ")
    return Column(heading, value, described.leave, described.text, described.host, described.state)
