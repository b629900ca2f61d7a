"""This process's registration in the metastore: how the cluster knows that the node lives, and with which copies.

One at a time, always with what the data directory holds at that moment: a copy's gen is durable there before anybody
hears of it (docs/protocol.md R-GEN). Whoever adds or renews a copy asks for `register` again; in the same session that
keeps the inc. What an expired session means to the replicas is the core's affair.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

import structlog

from repl.identity import Identity
from repl.metastore.port import Ambiguous, Conflict, Metastore, Unavailable
from repl.model.errors import IsthmusError
from repl.model.record import Registration

log = structlog.get_logger(__name__)


WITHDRAW_S: Final = 2.0
"""How long a process that is leaving waits for the metastore to note it."""


class Registrar:
    """Registers `self_portrait`, completed with the directory's gens and the wish to be elected."""

    def __init__(self, metastore: Metastore, identity: Identity, self_portrait: Registration) -> None:
        self._metastore = metastore
        self._identity = identity
        self._portrait = self_portrait
        self._one_at_a_time = asyncio.Lock()
        self.inc = 0
        """This process's session; 0 before the first."""
        self._withheld: dict[int, int] = {}
        """Partition -> no gen, of copies that this process holds and makes nothing of any more."""

    def withhold(self, partition: int) -> None:
        """Say of this copy, with the next `register` and until this process ends, that it is not here."""
        self._withheld[partition] = 0

    async def register(self) -> int:
        """Register, or renew what is registered; returns the inc. Raises Unavailable, Ambiguous, Conflict, and
        WrongIdentity when another node goes by this one's number."""
        async with self._one_at_a_time:
            gens = self._identity.gens() | self._withheld
            portrait = replace(self._portrait, gens=gens, spare_gen=self._identity.spare)
            inc = await self._metastore.register(portrait)
            if inc != self.inc:
                log.info("metastore.registered", inc=inc)
            self.inc = inc
            return inc

    async def withdraw(self, timeout_s: float) -> None:
        """Say that this process is leaving: nobody elects it or takes it into an ISR any more. Where the metastore does
        not answer within WITHDRAW_S or `timeout_s`, the end of the session will say so."""
        self._portrait = replace(self._portrait, active=False)
        try:
            async with asyncio.timeout(min(WITHDRAW_S, timeout_s)):
                await self.register()
        except (Unavailable, Ambiguous, Conflict, IsthmusError, TimeoutError) as error:
            log.warning("metastore.not_withdrawn", error=str(error))
