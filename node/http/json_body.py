"""JSON request bodies as typed structs: checks, error messages and the OpenAPI schema follow from the field types.

A body is a JSON object. Its struct names the keys, their types and limits; an unknown key or a value of another type
is refused with 400 `bad-json` and a sentence that names the key and what would be right. No body counts as an empty
object.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import inspect

from isthmus.node.http.application import Request, json_reply
from isthmus.node.http.responses import Reply, RequestRefused
from isthmus.node.http.router import Router
from isthmus.node.nouns.description import Act, DescribedNoun

B = TypeVar("B", bound=msgspec.Struct)


class BodyHandler(Generic[B]):
    """A routed handler that gets its request's body as a struct of type `model`."""

    def __init__(self, model: type[B], handler: Callable[[Request, B], Awaitable[Reply]]) -> None:
        self.model = model
        self._handler = handler
        self.__doc__ = handler.__doc__

    async def __call__(self, request: Request) -> Reply:
        """Read and check the body, then handle the request. Raises RequestRefused."""
        body = parse_body(await request.json(), self.model)
        request.model = body
        return await self._handler(request, body)


def add_noun(
    router: Router[Callable[..., Any]],
    noun: DescribedNoun,
    listed: Callable[[Request], Awaitable[Reply]],
    shown: Callable[[Request], Awaitable[Reply]] | None,
    acts: Mapping[Act, Callable[[Request, Any], Awaitable[Reply]]],
    views: Mapping[str, Callable[[Request], Awaitable[Reply]]] = MappingProxyType({}),
) -> None:
    """Add the routes of a noun: its list, one of it, its views and its acts, all of which must be there."""
    assert set(acts) == set(noun.acts), noun.name
    assert set(views) == set(noun.views), noun.name
    router.add("GET", noun.path, listed)
    if shown is not None:
        router.add("GET", noun.item_path, shown)
    for name, view in views.items():
        router.add("GET", f"{noun.path}/{name}", view)
    for act, handler in acts.items():
        router.add("POST", noun.act_path(act), BodyHandler(act.request, handler))


def struct_reply(answer: msgspec.Struct, status: int = 200) -> Reply:
    """An answer in the form that its struct describes."""
    return json_reply(msgspec.to_builtins(answer), status)


def parse_body(value: Any, model: type[B]) -> B:
    """`value`, which was read from JSON, as a `model`; None is an empty object. Raises RequestRefused."""
    if value is None:
        value = {}
    if not isinstance(value, dict):
        raise _refused('the body must be a JSON object, for instance {"reason": "maintenance"}')
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError) as error:
        raise _refused(f"the body is not JSON: a text in it is not Unicode: {error}") from None
    known = model.__struct_encode_fields__
    unknown = sorted(f"{key[:64]!r}" for key in value.keys() - set(known))
    if unknown:
        are = "is" if len(unknown) == 1 else "are"
        raise _refused(f"{', '.join(unknown)} in the body {are} unknown: {', '.join(sorted(known))} are right")
    try:
        return msgspec.convert(value, model)
    except msgspec.ValidationError as error:
        raise _refused(_explanation(model, value, str(error))) from None


def _refused(message: str) -> RequestRefused:
    return RequestRefused(400, "bad-json", message)


_MISSING: Final = re.compile(r"missing required field `(\w+)`$")
_WRONG: Final = re.compile(r"`\$\.(\w+)")


def _explanation(model: type[msgspec.Struct], body: dict[str, Any], error: str) -> str:
    """The error message about one field of `body`, made of msgspec's `error` and the field's type."""
    missing, wrong = _MISSING.search(error), _WRONG.search(error)
    name = (missing or wrong or [""])[1]
    struct = inspect.type_info(model)
    assert isinstance(struct, inspect.StructType)
    field = next(field for field in struct.fields if field.encode_name == name)
    if missing:
        return f"{name} is needed: {_words(field.type)}"
    too_long = "of length <=" in error and error.endswith(f"`$.{name}`")
    length = (
        f"; it has {len(body[name])} {'characters' if isinstance(body[name], str) else 'items'}" if too_long else ""
    )
    return f"{name} must be {_words(field.type)}{length}"


def _words(kind: inspect.Type) -> str:
    """The values that a type accepts, in words."""
    match kind:
        case inspect.Metadata(extra={"right": words}):
            return str(words)
        case inspect.Metadata(type=inner):
            return _words(inner)
        case inspect.UnionType(types=types):
            options = [_words(one) for one in types if not isinstance(one, inspect.NoneType)]
            null = [] if len(options) == len(types) else ["null"]
            return ", or ".join([*options, *null])
        case inspect.BoolType():
            return "true or false"
        case inspect.StrType(min_length=least, max_length=most):
            limit = "" if most is None else f" of at most {most} characters"
            return f"a text{limit}" + (" that is not empty" if least else "")
        case inspect.IntType(ge=least, le=most):
            limits = "" if least is None else f" from {least}" + ("" if most is None else f" to {most}")
            return f"a whole number{limits}"
        case inspect.ListType(item_type=item, max_length=most):
            return f"a list{'' if most is None else f' of at most {most}'}, each {_words(item)}"
        case inspect.LiteralType(values=values):
            return " or ".join(json.dumps(value) for value in values)
        case inspect.DictType():
            return "an object"
        case _:
            return "of another form"
