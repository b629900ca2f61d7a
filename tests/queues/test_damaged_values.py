"""Values of a queue in the metastore that cannot be read."""

from __future__ import annotations

import asyncio

from structlog.testing import capture_logs

from queues.steering import Act
from queues.throttle import Rates
from repl.metastore.memory import MemoryEnsemble
from tests.queues.home import Home


def test_one_value_that_cannot_be_read_hides_no_other_of_its_queue() -> None:
    """Damaged limits keep what they were, are told with their path, and a suspension made meanwhile counts, also for a
    node that starts."""

    async def run() -> None:
        ensemble = MemoryEnsemble()
        home = Home(ensemble=ensemble)
        await home.start()
        await home.queues.steering.set_rates("q", Rates(1_000_000, 7), Act("ann", 1, ""))
        await home.until(lambda: home.served()[0].throttle.rates.objects == 7)
        found = ensemble.read("/queues/q/rates")
        assert found is not None
        with capture_logs() as logs:
            ensemble.set("/queues/q/rates", b'{"bytes": {}}', found[1].version)
            await home.acts.suspend("q", "serving", None, Act("ann", 2, ""))
            await home.until(lambda: home.served()[0].suspension is not None)
        assert home.served()[0].throttle.rates.objects == 7
        assert {e["path"] for e in logs if e["event"] == "queue.metastore_value_unreadable"} == {"/queues/q/rates"}
        await home.crash()
        await home.start()
        assert home.served()[0].suspension is not None
        await home.close()

    asyncio.run(run())
