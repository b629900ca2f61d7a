"""Tables in Spark's catalog: the options that Spark passes when a table is created and used, without Java."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql import types as t

from isthmus.aae.reconcile.arrow_rows import schema_of
from isthmus.aae.reconcile.datasource import KEPT, IsthmusSource
from isthmus.aae.row_stream.wire import RowView
from isthmus.repl.model.errors import BadInput

OURS = {"urls": "http://n1:1", "bucket": "users", "text": "true", "token_file": "/etc/east.token"}


def created(**options: str) -> t.StructType:
    """The columns of a table made with these options, as Spark passes them for CREATE TABLE."""
    named = {f"option.{name}": text for name, text in options.items()}
    found = IsthmusSource({"provider": "isthmus", "owner": "me", "comment": "x", **options, **named}).schema()
    assert isinstance(found, t.StructType)
    return t.StructType.fromJson(json.loads(found.json()))  # as the catalog keeps them


def test_a_table_keeps_the_options_of_its_statement() -> None:
    """They are used by reads and writes that give none; an option of a use comes before the table's."""
    columns = created(**OURS)
    reader: Any = IsthmusSource({}).reader(columns)
    assert (reader._options.urls, reader._options.bucket) == (("http://n1:1",), b"users")
    other: Any = IsthmusSource({"Bucket": "towns"}).reader(columns)
    assert (other._options.urls, other._options.bucket) == (("http://n1:1",), b"towns")
    table = created(**OURS, columns="bucket,key,value", on_conflict="replace")
    writer: Any = IsthmusSource({}).writer(table, False)
    assert (writer._options.urls, writer._options.on_conflict) == (("http://n1:1",), "replace")
    assert [field.nullable for field in table.fields] == [False, False, True]
    assert all(field.nullable for field in created(**OURS, columns="key", not_utf8="null").fields)


def test_another_cluster_is_not_reached_with_a_tables_token() -> None:
    """A use with urls of its own gets none of the table's options."""
    source: Any = IsthmusSource({"urls": "http://west:1"}).reader(created(**OURS))
    assert source._options.urls == ("http://west:1",)
    assert source._options.credentials.token_file == ""
    assert source._options.bucket == b""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "option urls is missing"),
        ({"urls": "http://n1:1", "bukcet": "b"}, "did you mean bucket"),
        ({"view": "findings"}, "CREATE TEMPORARY VIEW"),
    ],
)
def test_a_table_that_could_not_be_used_is_not_made(options: dict[str, str], words: str) -> None:
    """Options are validated when the table is created; table properties are not options."""
    with pytest.raises(BadInput, match=words):
        created(**options)
    with pytest.raises(BadInput, match="option urls is missing"):
        IsthmusSource({"provider": "isthmus", "urls": "http://n1:1"}).schema()


def test_a_table_without_options_says_how_to_give_them() -> None:
    """This holds for a table created with a list of columns or by saveAsTable; a read without options is not a table,
    and its message does not suggest one."""
    names = schema_of(RowView.OBJECTS, ("bucket", "key", "value"), text=True)
    for use in (lambda: IsthmusSource({}).reader(names), lambda: IsthmusSource({}).writer(names, False)):
        with pytest.raises(BadInput, match=r"CREATE TABLE name USING isthmus OPTIONS.*\.writeTo\(name\)"):
            use()
    with pytest.raises(BadInput) as told:
        IsthmusSource({"bucket": "b"}).schema()
    assert "CREATE TABLE" not in str(told.value)
    names.fields[0].metadata = {KEPT: "{"}
    with pytest.raises(BadInput, match="create the table again"):
        IsthmusSource({}).reader(names)


def test_columns_choose_the_view() -> None:
    """If no view is named, columns that only objects have select the view `objects`."""
    source = IsthmusSource({"urls": "http://n1:1", "columns": "key,value"})
    assert source.schema() == schema_of(RowView.OBJECTS, ("key", "value"))
    reader: Any = IsthmusSource({"urls": "http://n1:1"}).reader(schema_of(RowView.OBJECTS, ("key", "value")))
    assert reader._options.view == RowView.OBJECTS
    with pytest.raises(BadInput, match="view keys has no column 'value'"):
        IsthmusSource({"urls": "http://n1:1", "view": "keys"}).reader(schema_of(RowView.OBJECTS, ("key", "value")))
