"""How a noun is described: the rows that it shows, the routes that show and change it, and the words of its acts. Pure.

From a description come the routes with their parameters, bodies and forms of answers (`node.http`), the words of the
acts in the audit log, the columns of the command line's table (`node.cli.described_table`), and the types of the
dashboard's JavaScript (`docs.generate`). What an answer is made from, what a command says beside its table, and how a
page lays it out is plain code elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, get_type_hints

import msgspec

from isthmus.node.nouns.requests import AuditedRequest

_COLUMNS: Final = "columns"


class TableColumn(NamedTuple):
    """The column of a field in the table of a listing.

    `heading` "": the field's name. `leave`: the order in which columns are left out on a narrow terminal, the highest
    first; 0: never. `moment`: milliseconds since 1970; `duration`: milliseconds. `nothing`: null means that there is
    none, not that it is not known. `state`: a word with a mark; `text`: sentences, which wrap; `host`: an address.
    `shown`: what is shown, by the whole row.
    """

    heading: str = ""
    leave: int = 0
    moment: bool = False
    duration: bool = False
    nothing: bool = False
    state: bool = False
    text: bool = False
    host: bool = False
    shown: Callable[[Mapping[str, Any]], Any] | None = None


def means(description: str, *columns: TableColumn) -> msgspec.Meta:
    """Metadata of a row's field: what it means, and its columns; without one it is in JSON alone."""
    return msgspec.Meta(description=description, extra={_COLUMNS: columns})


def columns_of(row: type[msgspec.Struct]) -> Iterator[tuple[str, TableColumn]]:
    """(key in JSON, column) of each column, in the order of the fields."""
    keys = dict(zip(row.__struct_fields__, row.__struct_encode_fields__, strict=True))
    for name, kind in get_type_hints(row, include_extras=True).items():  # a tenth of what msgspec.inspect takes
        for each in getattr(kind, "__metadata__", ()):
            for column in (each.extra or {}).get(_COLUMNS, ()) if isinstance(each, msgspec.Meta) else ():
                yield keys[name], column


class Parameter(NamedTuple):
    """A parameter of a route's query: a text, or a whole number."""

    meaning: str
    number: bool = False


Parameters = Mapping[str, Parameter]
"""Name -> parameter."""


@dataclass(frozen=True, slots=True)
class Act:
    """A change: POST {item path}/{verb} of one thing, or POST {path}/{verb} `of_all`; "" for the path itself.

    `request`: its body. `answer`: what is answered, `plan`: what a dry run answers, where that is another form.
    `audited`: the act in words, with the path's parameters; "" where it changes nothing. `status`: of its answer."""

    verb: str
    request: type[AuditedRequest]
    answer: type[msgspec.Struct]
    audited: str
    of_all: bool = False
    plan: type[msgspec.Struct] | None = None
    status: int = 200


class RouteAnswer(NamedTuple):
    """What a route answers: the form, and that of a dry run where it differs."""

    method: str
    path: str
    forms: tuple[type[msgspec.Struct], ...]
    status: int = 200


@dataclass(frozen=True, slots=True)
class DescribedNoun:
    """What GET {path} lists, and GET {path}/{key} shows one of.

    `listing`, `one`: what they answer, None where there is no such route; `row`: of the listing. `views`: name -> what
    GET {path}/{name} answers. `parameters`: of the listing, `one_parameters`: of one, `view_parameters`: of each view.
    `key`: the parameter that names one in a path; "" where no route has one.
    """

    name: str
    path: str
    key: str
    row: type[msgspec.Struct]
    listing: type[msgspec.Struct]
    one: type[msgspec.Struct] | None
    acts: tuple[Act, ...]
    parameters: Parameters = field(default_factory=dict)
    one_parameters: Parameters = field(default_factory=dict)
    views: Mapping[str, type[msgspec.Struct]] = field(default_factory=dict)
    view_parameters: Mapping[str, Parameters] = field(default_factory=dict)

    @property
    def item_path(self) -> str:
        """The path of one."""
        return f"{self.path}/{{{self.key}}}"

    def act_path(self, act: Act) -> str:
        """The path of an act."""
        path = self.path if act.of_all else self.item_path
        return f"{path}/{act.verb}" if act.verb else path

    def parameters_of(self, method: str, path: str) -> Parameters:
        """The query parameters of a route."""
        found: dict[str, Parameters] = {self.item_path: self.one_parameters, self.path: self.parameters}
        found |= {f"{self.path}/{name}": parameters for name, parameters in self.view_parameters.items()}
        return found.get(path, {}) if method == "GET" else {}

    def answers(self) -> Iterator[RouteAnswer]:
        """The answer of each route."""
        yield RouteAnswer("GET", self.path, (self.listing,))
        if self.one is not None:
            yield RouteAnswer("GET", self.item_path, (self.one,))
        for name, answer in self.views.items():
            yield RouteAnswer("GET", f"{self.path}/{name}", (answer,))
        for act in self.acts:
            forms = (act.answer,) if act.plan is None else (act.answer, act.plan)
            yield RouteAnswer("POST", self.act_path(act), forms, act.status)
