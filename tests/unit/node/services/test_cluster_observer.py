"""What the controller reads reaches the components of its node."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.node.services.cluster_observer import NodeObserver
from isthmus.repl.controller.dynamic_options import OptionSettings
from isthmus.repl.model.record import Registration
from isthmus.repl.unforeseen import unforeseen

NODES = {
    "n1": Registration("n1", 1, True, cluster_address="one:1"),
    "n2": Registration("n2", 2, True, cluster_address="two:1"),
    "n3": Registration("n3", 3, True),
}


class Components:
    """The components of n1, which note what they are told."""

    def __init__(self, failing: str = "") -> None:
        """`failing`: what raises instead of taking note, "" for nothing."""
        self.told: list[tuple[Any, ...]] = []
        self._failing = failing
        self.registrar: Any = SimpleNamespace(taken=False, seen=self._note("seen"))
        links = SimpleNamespace(set_nodes=self._note("dialled"))
        runtime = SimpleNamespace(
            node="n1", links=links, records_seen=self._note("records"), registrations_seen=self._note("registrations")
        )
        routes = SimpleNamespace(records_changed=self._note("routes"), registrations_changed=self._note("addresses"))
        self.observer = NodeObserver(
            runtime,  # type: ignore[arg-type]
            SimpleNamespace(learn_records=self._note("coordinator")),  # type: ignore[arg-type]
            self.registrar,
            options=SimpleNamespace(apply=self._note("options")),  # type: ignore[arg-type]
            routes=routes,  # type: ignore[arg-type]
            downtimes=SimpleNamespace(learn=self._note("downtimes")),  # type: ignore[arg-type]
            time=SimpleNamespace(wall_ms=lambda: 77),  # type: ignore[arg-type]
        )

    def _note(self, what: str) -> Any:
        def note(*given: Any) -> None:
            if what == self._failing:
                raise RuntimeError(what)
            self.told.append((what, *given))

        return note


def test_the_other_nodes_with_an_address_are_dialled() -> None:
    """This node is not, nor one that has no address for nodes; all others learn of every registration."""
    made = Components()
    made.observer.on_registrations(NODES)
    assert ("dialled", {"n2": "two:1"}) in made.told
    assert made.told[:4] == [("registrations", NODES), ("downtimes", NODES, 77), ("seen", NODES), ("addresses", NODES)]


def test_no_node_is_dialled_while_another_process_has_this_nodes_name() -> None:
    """H28: other nodes would drop the connections of that process."""
    made = Components()
    made.registrar.taken = True
    made.observer.on_registrations(NODES)
    assert made.told[-1] == ("dialled", {})


def test_records_and_options_are_passed_on() -> None:
    """The coordinator also learns which partitions have no readable record."""
    made, records, options = Components(), {0: object()}, OptionSettings()
    made.observer.on_records(records, {4})  # type: ignore[arg-type]
    made.observer.on_options(options)
    assert made.told == [("records", records), ("coordinator", records, {4}), ("routes", records), ("options", options)]


@pytest.mark.parametrize("failing", ["registrations", "downtimes", "seen", "addresses", "dialled"])
def test_registrations_reach_the_others_when_a_component_fails(failing: str) -> None:
    """R-ALONE: the node goes on to dial, to register and to answer routes; the defect is a finding."""
    made, all_told = Components(failing), ["registrations", "downtimes", "seen", "addresses", "dialled"]
    made.observer.on_registrations(NODES)
    assert [what for what, *_ in made.told] == [each for each in all_told if each != failing]
    assert ("node.observer_bug", failing) in {(each.event, each.text) for each in unforeseen.recent()}


@pytest.mark.parametrize("failing", ["records", "coordinator", "routes"])
def test_records_reach_the_others_when_a_component_fails(failing: str) -> None:
    """R-ALONE: replicas follow the records and routes stay current; the defect is a finding."""
    made, all_told = Components(failing), ["records", "coordinator", "routes"]
    made.observer.on_records({0: object()}, ())  # type: ignore[dict-item]
    assert [what for what, *_ in made.told] == [each for each in all_told if each != failing]
    assert ("node.observer_bug", failing) in {(each.event, each.text) for each in unforeseen.recent()}
