"""The table of a described noun (`node.nouns`)."""

from __future__ import annotations

from typing import Any

import msgspec

from isthmus.node.cli.output import Column, Row, TableSpec, moment
from isthmus.node.nouns.description import TableColumn, columns_of


def table_of(row: type[msgspec.Struct]) -> TableSpec:
    """The columns that the description of a noun's rows gives them, in the order of the fields."""
    return TableSpec(*(_column(name, described) for name, described in columns_of(row)))


def _column(name: str, described: TableColumn) -> Column:
    def value(row: Row) -> Any:
        if described.shown is not None:
            return described.shown(row)
        found = row.get(name)
        if found is None or found == "":
            return "" if described.nothing else found
        return moment(found) if described.moment else found

    heading = described.heading or name.replace("_", " ")
    return Column(heading, value, described.leave, described.text, described.host, described.state)
