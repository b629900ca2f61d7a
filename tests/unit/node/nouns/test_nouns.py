"""What all described nouns share: their routes, the forms of their answers, and the words of their acts."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest
from msgspec import inspect

from isthmus.node.admin_api.application import AdminApi
from isthmus.node.cli.described_table import table_of
from isthmus.node.cli.output import NOTHING, UNKNOWN, cell
from isthmus.node.http.audit import ACTS, NOT_ACTS
from isthmus.node.http.json_body import BodyHandler
from isthmus.node.http.openapi import describe
from isthmus.node.nouns.description import DescribedNoun, columns_of
from isthmus.node.nouns.nouns import NOUNS
from tests.support.node_status import FakeNodeStatus
from tests.support.noun_examples import example_of
from tests.support.open_access import EVERYBODY

each_noun = pytest.mark.parametrize("noun", NOUNS, ids=lambda noun: noun.name)


@pytest.fixture(scope="module")
def api() -> AdminApi:
    """The admin API, of which no handler is called."""
    return AdminApi(SimpleNamespace(), FakeNodeStatus(), EVERYBODY)  # type: ignore[arg-type]


@each_noun
def test_a_noun_has_the_routes_that_it_describes(api: AdminApi, noun: DescribedNoun) -> None:
    """List, one, and each act are routed, the acts with the described bodies."""
    routed = {(method, path): handler for path, method, handler in api.router.routes()}
    assert {(each.method, each.path) for each in noun.answers()} <= set(routed)
    for act in noun.acts:
        handler = routed["POST", noun.act_path(act)]
        assert isinstance(handler, BodyHandler)
        assert handler.model is act.request


@each_noun
def test_openapi_has_the_form_of_each_answer(api: AdminApi, noun: DescribedNoun) -> None:
    """The answer of each route refers to a schema of the document, which says what every column means and takes an
    example; the parameters of the description are those of the listing."""
    document = describe(api, "operators", "1", objects=False)
    schemas = document["components"]["schemas"]
    for method, path, answers, status in noun.answers():
        described = document["paths"][path][method.lower()]
        schema = described["responses"][str(status)]["content"]["application/json"]["schema"]
        references = [each["$ref"] for each in schema.get("oneOf", [schema])]
        assert references == [f"#/components/schemas/{answer.__name__}" for answer in answers]
        for answer in answers:
            assert set(schemas[answer.__name__]["properties"]) == set(example_of(answer))
    row = schemas[noun.row.__name__]["properties"]
    assert all(row[name].get("description") for name, _ in columns_of(noun.row))
    query = document["paths"][noun.path]["get"].get("parameters", [])
    assert [each["name"] for each in query] == list(noun.parameters)


@each_noun
def test_each_act_has_words_for_the_audit_log(noun: DescribedNoun) -> None:
    """Those of an act of one thing name it, and no two acts have the same; what has none is known to change nothing."""
    assert all(("POST", noun.act_path(act)) in NOT_ACTS for act in noun.acts if not act.audited)
    acts = [act for act in noun.acts if act.audited]
    words = [ACTS["POST", noun.act_path(act)] for act in acts]
    assert all((f"{{{noun.key}}}" in each) is not act.of_all for act, each in zip(acts, words, strict=True))
    assert len(set(words)) == len(words)


@each_noun
def test_answers_are_read_back_as_they_are_described(noun: DescribedNoun) -> None:
    """An example of each answer is read back unchanged as its struct, and the listing has a list of the noun's rows."""
    for answer in (answer for each in noun.answers() for answer in each.forms):
        example = example_of(answer)
        assert msgspec.to_builtins(msgspec.convert(example, answer, strict=True)) == example
    described = inspect.type_info(noun.listing)
    assert isinstance(described, inspect.StructType)
    lists = [each.type.item_type for each in described.fields if isinstance(each.type, inspect.ListType)]
    assert noun.row in [each.cls for each in lists if isinstance(each, inspect.StructType)]


@each_noun
def test_the_table_has_the_described_columns(noun: DescribedNoun) -> None:
    """A row of JSON gives a cell for each column, whose headings differ; what is null is shown as unknown, or as
    nothing where the description says that there is none."""
    table = table_of(noun.row)
    described = list(columns_of(noun.row))
    assert len(set(table.headings)) == len(described)
    cells = table.cells(example_of(noun.row))
    assert all(cell(value) not in (UNKNOWN, NOTHING) for value in cells)
    for (_, column), value in zip(described, table.cells(dict.fromkeys(noun.row.__struct_fields__)), strict=True):
        if column.shown is None:
            assert cell(value) == (NOTHING if column.nothing else UNKNOWN)
