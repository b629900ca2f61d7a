"""The check of ledgers after a load, shown on stand-ins."""

from __future__ import annotations

from typing import Any

import pytest

from tests.system.replication import clusters as module
from tests.system.replication.clusters import Clusters

SETTLED: dict[str, Any] = {"closes": True, "lost": {}, "waiting": 0, "in_flight": 0}


class FakeClusters(Clusters):
    """Clusters whose nodes answer these ledgers, one reading after the other; the last one again and again."""

    def __init__(self, *readings: list[dict[str, Any] | None]) -> None:
        self.left = list(readings)

    def ledgers(self, cluster: str, receiver: str) -> Any:
        """See Clusters."""
        assert (cluster, receiver) == ("east", "west")
        return self.left.pop(0) if len(self.left) > 1 else self.left[0]


@pytest.fixture(autouse=True)
def _no_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.time, "sleep", lambda _s: None)


@pytest.mark.parametrize(
    "before", [None, SETTLED | {"closes": None}, SETTLED | {"waiting": 1}, SETTLED | {"in_flight": 1}]
)
def test_what_still_waits_is_waited_for(before: dict[str, Any] | None) -> None:
    """One node's ledger that is unknown, or has a change that waits, is read again until it is settled."""
    made = FakeClusters([SETTLED, before], [SETTLED, before], [SETTLED, SETTLED])
    made.check_ledger("east", "west")
    assert len(made.left) == 1


def test_what_never_settles_fails_with_its_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the ledger as it was when the time was over."""
    monkeypatch.setattr(module, "CALM_TIMEOUT_S", 0.0)
    with pytest.raises(AssertionError, match=r"east to west is not settled after 0 s: .*'waiting': 7"):
        FakeClusters([SETTLED, SETTLED | {"waiting": 7}]).check_ledger("east", "west")


@pytest.mark.parametrize("wrong", [{"closes": False}, {"lost": {3: [17]}}])
def test_a_wrong_ledger_is_not_waited_for(wrong: dict[str, Any]) -> None:
    """A change that is counted wrongly or lost fails at once, though a later reading would pass."""
    made = FakeClusters([SETTLED | wrong], [SETTLED])
    with pytest.raises(AssertionError, match="the ledger of east to west: "):
        made.check_ledger("east", "west")
