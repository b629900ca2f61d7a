"""An example of each struct that a described noun answers with."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import inspect


def example_of(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """An object of this form, as JSON has it: every list and object in it has one element."""
    described = inspect.type_info(struct)
    assert isinstance(described, inspect.StructType)
    return {each.encode_name: _example(each.type, each.encode_name) for each in described.fields}


def _example(kind: inspect.Type, name: str) -> Any:
    match kind:
        case inspect.Metadata(type=inner):
            return _example(inner, name)
        case inspect.UnionType(types=types):
            return _example(next(each for each in types if not isinstance(each, inspect.NoneType)), name)
        case inspect.ListType(item_type=item):
            return [_example(item, name)]
        case inspect.TupleType(item_types=items):
            return tuple(_example(item, name) for item in items)
        case inspect.DictType(value_type=value):
            return {"n2": _example(value, name)}
        case inspect.StructType(cls=struct):
            return example_of(struct)
        case inspect.LiteralType(values=values):
            return values[0]
        case inspect.IntType():
            return 7
        case inspect.FloatType():
            return 7.5
        case inspect.BoolType():
            return True
        case _:
            return f"a {name}"
