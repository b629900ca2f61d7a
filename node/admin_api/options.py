"""Dynamic options in the admin API: list, set and unset, on any node of the cluster.

Options are defined in `config.dynamic_options`, set in the metastore (`repl.controller.dynamic_options`), and evaluated
by `node.services.live_options`. An answer waits until a change is in force on this node, and min-ISR in the records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import UNSET

from isthmus.config.dynamic_options import OPTIONS
from isthmus.config.schema import SettingDefinition, SettingScope
from isthmus.config.text import no_such
from isthmus.node.admin_api.acting_user import acting_user
from isthmus.node.http.application import Request
from isthmus.node.http.json_body import add_noun, struct_reply
from isthmus.node.http.responses import Reply, RequestRefused
from isthmus.node.http.router import Router
from isthmus.node.nouns.option import OPTION, SET, UNSET_IT, ChangeOptionRequest, OptionChange, OptionList, OptionRow
from isthmus.node.services.container import NodeServices
from isthmus.node.services.option_status import option_rows, waiting, warnings
from isthmus.node.services.settings_query import differing, nodes_behind, reads, settings_of_nodes
from isthmus.repl.controller.dynamic_options import OptionSettings, change_option
from isthmus.repl.controller.stored_setting import Setting, check_expected

IN_FORCE_S: Final = 3.0
"""How long an answer waits for a change to be in force here. A watch takes milliseconds; a longer delay is reported."""

POLL_S: Final = 0.02
"""Interval of the checks in between."""


class OptionsAdmin:
    """Routes over the options of the cluster."""

    def __init__(self, services: NodeServices, router: Router[Callable[..., Any]]) -> None:
        self._services = services
        add_noun(router, OPTION, self.listed, self.shown, {SET: self.set, UNSET_IT: self.unset})

    async def listed(self, request: Request) -> Reply:
        """Every option; with ?bucket_type=T the values of that bucket type.

        Of each: the value that is set, the value in force and its origin, by whom, when and why; `differs`: nodes where
        another value is in force, with its origin. `behind`: nodes that have not read the newest settings; `unknown`:
        nodes of which that is not known, and why.
        """
        return struct_reply(await self._shown(self._rows(None, self._kind(request.query.get("bucket_type")))))

    async def shown(self, request: Request) -> Reply:
        """One option."""
        option = self._option(request)
        rows = self._rows([option.name], self._kind(request.query.get("bucket_type")))
        return struct_reply(await self._shown(rows))

    async def set(self, request: Request, body: ChangeOptionRequest) -> Reply:
        """Set an option for the cluster or for one bucket type.

        Answers the rows as they are then, `warnings`, and in `waiting` the partitions whose records do not have the
        value after 3 s.
        """
        return await self._change(request, body, setting=True)

    async def unset(self, request: Request, body: ChangeOptionRequest) -> Reply:
        """Unset an option: the cluster's setting, the nodes' files or the default apply again."""
        return await self._change(request, body, setting=False)

    async def _change(self, request: Request, body: ChangeOptionRequest, *, setting: bool) -> Reply:
        option = self._option(request)
        kind, by = self._kind(body.bucket_type), acting_user(body.by)
        if kind is not None and SettingScope.BUCKET_TYPE not in option.scopes:
            raise RequestRefused(
                400, "bad-option", f"{option.name}: is set for the cluster only, not for a bucket type"
            )
        wanted: Setting | None = None
        if setting:
            try:
                value = option.typed(body.value)
            except ValueError as error:
                raise RequestRefused(400, "bad-option", str(error)) from None
            wanted = Setting.made(value, by, self._services.time.wall_ms(), body.reason or "")
        controller = self._services.controller
        before = controller.options.of(kind).get(option.name)
        outcome = ("set" if setting else "unset") if setting or before is not None else "was not set"
        if body.dry_run:
            if body.expected is not UNSET:
                check_expected(option.name, body.expected, before)
            after = controller.options.with_setting(option.name, kind, wanted)
            return await self._answer(option, kind, after, before, "would be " * (outcome != "was not set") + outcome)
        after = await change_option(controller.metastore, option.name, kind, wanted, body.expected)
        request.changed(None if before is None else before.value, None if wanted is None else wanted.value)
        await self._in_force(after)
        return await self._answer(option, kind, after, before, outcome, changed=True)

    async def _in_force(self, after: OptionSettings) -> None:
        """Return once `after` is in force on this node, and every record has its min-ISR; or after IN_FORCE_S."""
        controller = self._services.controller

        def pending() -> bool:
            if not reads(controller.options.version, after.version):
                return True
            kinds = {record.bucket_type for record in controller.records.values()}
            return any(waiting(controller.options, controller.records, kind) for kind in kinds)

        controller.wake()
        for _ in range(round(IN_FORCE_S / POLL_S)):
            if not pending():
                return
            await asyncio.sleep(POLL_S)

    async def _answer(
        self,
        option: SettingDefinition,
        kind: str | None,
        after: OptionSettings,
        before: Setting | None,
        outcome: str,
        *,
        changed: bool = False,
    ) -> Reply:
        """The answer to a change, or (not `changed`) to a dry run: `after` is what is set, or would be."""
        records = self._services.controller.records
        rows = option_rows(after, records, self._services.options, names=[option.name], bucket_type=kind)
        shown = await self._shown(rows, None if changed else after, after.version if changed else None)
        return struct_reply(
            OptionChange(
                outcome,
                before=None if before is None else before.value,
                before_by=None if before is None else before.by,
                options=shown.options,
                behind=shown.behind,
                unknown=shown.unknown,
                warnings=warnings(after, records, option.name, kind),
            )
        )

    async def _shown(
        self, rows: list[OptionRow], wanted: OptionSettings | None = None, version: int | None = None
    ) -> OptionList:
        """Rows with the nodes where another value is in force; with `wanted` as if these were set. `version`: the nodes
        are given some time to read it."""
        services = self._services
        answers, unknown = await settings_of_nodes(
            services.query, services.membership, wanted, lambda answer: reads(answer.options_version, version)
        )
        versions = {node: answer.options_version for node, answer in answers.items() if answer is not None}
        return OptionList(
            [msgspec.structs.replace(row, differs=differing(row, answers)) for row in rows],
            behind=nodes_behind(versions),
            unknown=unknown,
        )

    def _rows(self, names: list[str] | None, kind: str | None) -> list[OptionRow]:
        controller = self._services.controller
        return option_rows(
            controller.options, controller.records, self._services.options, names=names, bucket_type=kind
        )

    @staticmethod
    def _option(request: Request) -> SettingDefinition:
        name = request.text("option")
        found = OPTIONS.get(name)
        if found is None:
            raise RequestRefused(404, "unknown-option", no_such("option", name, list(OPTIONS)))
        return found

    def _kind(self, name: str | None) -> str | None:
        """Check that the bucket type exists, or has settings. Raises RequestRefused."""
        controller = self._services.controller
        known = {record.bucket_type for record in controller.records.values()} | controller.options.types.keys()
        if name is not None and name not in known:
            raise RequestRefused(404, "unknown-bucket-type", no_such("bucket type", name, sorted(known)))
        return name
