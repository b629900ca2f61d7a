"""JSON request bodies as typed structs: checks, error messages and the OpenAPI schema follow from the field types.

A body is a JSON object. Its struct names the keys, their types and limits; an unknown key or a value of another type
is refused with 400 `bad-json` and a sentence that names the key and what would be right. No body counts as an empty
object.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final, Generic, TypeVar

import msgspec
from msgspec import inspect

from isthmus.node.http.application import Request
from isthmus.node.http.responses import Reply, RequestRefused

WORDS_MAX: Final = 1_000
"""Characters of `by` and of `reason`, which stay in records, listings and logs; more than a sentence needs."""

By = Annotated[
    str,
    msgspec.Meta(
        max_length=WORDS_MAX, description="Name of the person who makes the change; null: the node's own user."
    ),
]
Reason = Annotated[str, msgspec.Meta(max_length=WORDS_MAX, description="Why; shown in listings and logs.")]
Name = Annotated[str, msgspec.Meta(min_length=1)]
DryRun = Annotated[bool, msgspec.Meta(description="Only show the effect; nothing is changed.")]


class JsonRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all request bodies."""

    def only_reads(self) -> bool:
        """Whether this request changes nothing: a dry run. It is not recorded in the audit log."""
        return getattr(self, "dry_run", False) is True


class AuditedRequest(JsonRequest, frozen=True, kw_only=True):
    """A change that is recorded with its author and reason."""

    by: By | None = None
    reason: Reason | None = None


B = TypeVar("B", bound=msgspec.Struct)


def right(words: str) -> msgspec.Meta:
    """Metadata of a field: its error message says that these words would be right."""
    return msgspec.Meta(extra={"right": words})


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
