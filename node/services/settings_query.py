"""The dynamic options and the versions of the settings in force on every node.

All nodes read the same documents, but a node that cannot reach the metastore applies older ones, and where an option is
not set, each node's own file counts. min-ISR is in the partitions' records and the same everywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from isthmus.config.dynamic_options import MIN_ISR
from isthmus.node.nouns.option import OptionRow, ValueAtNode
from isthmus.node.services.cluster_query import ClusterAnswers, ClusterQuery, JsonBody, Query
from isthmus.node.services.live_options import EffectiveOptions
from isthmus.node.services.membership import ClusterMembership, not_alive
from isthmus.node.services.properties import PropertyService
from isthmus.repl.controller.dynamic_options import OptionSettings, decode_options, encode_options
from isthmus.repl.metastore.port import Versioned

METHOD: Final = "settings"

READ_S: Final = 3.0
"""How long an answer to a change waits until the other nodes have read it. A watch takes milliseconds; a longer delay
is reported."""

POLL_S: Final = 0.1
"""Interval of the questions in between."""


class ReadSettings(msgspec.Struct, frozen=True):
    """The settings of a node. `options`: the document of options that is to count in place of the node's own, so that
    the answer shows what would be in force."""

    options: str | None = None


class ValueInForce(msgspec.Struct, frozen=True, array_like=True):
    """An option in force on a node, for a bucket type or (None) for those without a setting of their own."""

    option: str
    bucket_type: str | None
    value: int | str
    origin: str


class SettingsInForce(msgspec.Struct, frozen=True):
    """The settings of one node: versions of the documents that it has read, None for none, and its options."""

    options_version: int | None
    properties_version: int | None
    values: list[ValueInForce]


SETTINGS: Final[Query[ReadSettings, SettingsInForce]] = Query(
    METHOD, JsonBody(METHOD, ReadSettings), JsonBody(METHOD, SettingsInForce)
)


class SettingsResponder:
    """Answers SETTINGS from this node's options and properties."""

    def __init__(self, options: EffectiveOptions, properties: PropertyService) -> None:
        self._options = options
        self._properties = properties

    async def respond(self, request: ReadSettings) -> SettingsInForce:
        """See Responder. Raises Corruption."""
        options = self._options
        chosen = options.chosen
        if request.options is not None:
            chosen = decode_options(Versioned(request.options.encode(), chosen.version or 0))
        values = [
            ValueInForce(name, kind, *options.effective(name, kind, chosen)) for name, kind in options.scopes(chosen)
        ]
        return SettingsInForce(options.chosen.version, self._properties.cache.settings.version, values)


async def settings_of_nodes(
    query: ClusterQuery,
    membership: ClusterMembership,
    options: OptionSettings | None = None,
    has_read: Callable[[SettingsInForce], bool] = lambda _: True,
) -> ClusterAnswers[SettingsInForce]:
    """The settings in force on every known node; with `options` those that would be if these were set. After a change
    the nodes have READ_S until each that answers `has_read` it."""
    known, live = membership.known_nodes(), membership.live_nodes()
    request = ReadSettings(None if options is None else encode_options(options).decode())
    ends_s = asyncio.get_running_loop().time() + READ_S
    answers = await query.ask(SETTINGS, request, live)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(ends_s):
            while not all(has_read(answer) for answer in answers.by_node.values() if answer is not None):
                await asyncio.sleep(POLL_S)
                answers = await query.ask(SETTINGS, request, live)
    by_node = {**dict.fromkeys(sorted(known)), **answers.by_node}
    return ClusterAnswers(by_node, {**not_alive(known - live), **answers.unknown})


def reads(found: int | None, version: int | None) -> bool:
    """Whether a node that has read version `found` of a document has read `version`; None: there was no document."""
    return version is None or (found is not None and found >= version)


def nodes_behind(versions: Mapping[str, int | None]) -> list[str]:
    """The nodes that have not read the newest version which any of them has."""
    newest = max((-1 if version is None else version for version in versions.values()), default=-1)
    return sorted(node for node, version in versions.items() if (-1 if version is None else version) < newest)


def differing(row: OptionRow, answers: Mapping[str, SettingsInForce | None]) -> dict[str, ValueAtNode]:
    """Node -> the value in force there, of the nodes where it is another than in `row`."""
    if row.option == MIN_ISR:
        return {}
    found = {}
    for node, answer in sorted(answers.items()):
        value = None if answer is None else _value(answer.values, row.option, row.bucket_type)
        if value is not None and value.value != row.effective:
            found[node] = ValueAtNode(value.value, value.origin)
    return found


def _value(values: Iterable[ValueInForce], option: str, bucket_type: str | None) -> ValueInForce | None:
    """The value for a bucket type, else that of those without a setting of their own; None where the node does not know
    the option."""
    of_option = {each.bucket_type: each for each in values if each.option == option}
    return of_option.get(bucket_type) or of_option.get(None)
