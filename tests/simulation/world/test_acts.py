"""Which acts operators can do is told by the product: the world knows them all."""

from __future__ import annotations

import sys
from random import Random
from types import SimpleNamespace

import click
import pytest

from isthmus.node.admin_api.application import AdminApi
from isthmus.node.cli.main import root
from isthmus.node.dashboard.routes import Dashboard
from isthmus.node.http.audit import ACTS
from tests.simulation.world.acts import MODULES
from tests.simulation.world.admin import Answer, WrongAnswer, ask, wrong
from tests.simulation.world.clusters import Shape
from tests.simulation.world.commands import Ran, run
from tests.simulation.world.plan import Step
from tests.simulation.world.steps import KINDS, Doing, StepKind, possible
from tests.simulation.world.world import World
from tests.support.node_status import FakeNodeStatus
from tests.support.open_access import EVERYBODY

ROUTES_LEFT_OUT = {
    "POST /dashboard/session": "a login of a browser",
    "POST /dashboard/session/end": "a login of a browser",
    "POST /dashboard/links": "a login of a browser",
}
"""Routes that change something, and why the world does not."""


LOOKS = {
    "status", "version", "help", "lag", "ledger", "explain", "events", "support-bundle", "audit list",
    "check clocks", "check gaps", "check isr", "check lag", "check sink", "check sync",
    "cluster status", "cluster telemetry", "cluster wait", "node list", "partition list", "partition moves",
    "partition plan", "partition show", "bucket-type list", "bucket-type properties", "bucket-type show", "bucket list",
    "bucket show",
    "option get", "option list", "option show", "config check", "config sample", "config show", "backup verify",
    "queue ledger", "queue list", "queue peek", "queue show", "queue test-filter",
    "riak list", "riak status", "sink conflicts", "sink dead-letters list", "sink list", "sink show",
    "fullsync schedule", "fullsync status",
    "kv get", "kv list", "fold find-keys", "fold find-tombs", "fold list-buckets", "fold object-stats",
    "local status", "local sample", "reconcile show", "reconcile java-home",
}  # fmt: skip
"""Commands that change nothing."""

COMMANDS_LEFT_OUT = {
    "context add": "the user's own file of addresses",
    "context list": "the user's own file of addresses",
    "context remove": "the user's own file of addresses",
    "context show": "the user's own file of addresses",
    "context use": "the user's own file of addresses",
    "dashboard": "a login of a browser",
    "node run": "the process itself, which the world starts",
    "node init": "writes a config file; the world writes its nodes'",
    "cluster adopt": "has an event loop of its own; the act calls what it calls",
    "backup create": "the act calls what it calls, and lets the node write meanwhile",
    "backup restore": "the act calls what it calls",
    "kv put": "what clients do",
    "kv delete": "what clients do",
    "reconcile export": "Spark",
    "reconcile import": "Spark",
    "reconcile repair": "Spark",
    "reconcile run": "Spark",
    "reconcile seed": "Spark",
    "reconcile stats": "Spark",
    "reconcile trees": "Spark",
    "demo": "processes",
    "local down": "processes",
    "local restart-node": "processes",
    "local start-node": "processes",
    "local stop-node": "processes",
    "local up": "processes",
    "dev certs": "files for trying things out",
    "dev tokens": "files for trying things out",
}
"""Commands that change something, and why the world does not run them."""


def commands(command: click.Command = root, words: tuple[str, ...] = ()) -> dict[str, click.Command]:
    """All commands of the command line by their words."""
    context = click.Context(command, info_name=words[-1] if words else "isthmus")
    if not isinstance(command, click.Group):
        return {" ".join(words): command}
    found: dict[str, click.Command] = {}
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        found.update(commands(inner, (*words, name)))
    return found


def routes() -> set[str]:
    """All requests of operators that may change something, as "POST /admin/...": of the admin API and the dashboard,
    and the GETs of Riak's tools."""
    api = AdminApi(SimpleNamespace(), FakeNodeStatus(), EVERYBODY)  # type: ignore[arg-type]
    Dashboard(api, None, "cluster", "node")
    changing = {f"{method} {pattern}" for pattern, method, _ in api.router.routes() if method not in ("GET", "HEAD")}
    return changing | {f"GET {pattern}" for method, pattern in ACTS if method == "GET"}


def covered() -> set[str]:
    """What the world's acts do."""
    assert MODULES  # they are imported
    return set().union(*(each.covers for each in KINDS[StepKind.ACT].values()))


def test_every_request_that_changes_something_is_an_act() -> None:
    """A route that nobody taught the world fails here; so does an act of a route that is no more, and a reason for a
    route that an act does after all."""
    done = {each for each in covered() if each.startswith(("POST ", "PUT ", "DELETE ", "GET "))}
    assert routes() - done == ROUTES_LEFT_OUT.keys()
    assert done - routes() == set()


def test_every_command_that_changes_something_is_an_act() -> None:
    """A command that nobody taught the world, and that is not known to change nothing, fails here; so does one that is
    no more, and one with an author (--by) among those that change nothing."""
    known = commands()
    done = {each for each in covered() if not each.startswith(("POST ", "GET "))}
    assert known.keys() - done - LOOKS == COMMANDS_LEFT_OUT.keys()
    assert (done | LOOKS) - known.keys() == set()
    assert not done & LOOKS
    assert [words for words in sorted(LOOKS) if any("--by" in each.opts for each in known[words].params)] == []


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        (Answer(200, "", {}), True),
        (Answer(202, "", {}), True),
        (Answer(404, "unknown-queue", {"error": "there is no queue"}), True),
        (Answer(409, "plan-refused", {"error": "too few nodes"}), True),
        (Answer(503, "not-ready", {"error": "no leader"}), True),
        (Answer(504, "outcome-unknown", {"error": "it may be done"}), True),
        (Answer(503, "", {"error": "no leader"}), False),
        (Answer(503, "not-ready", {}), False),
        (Answer(400, "bad-json", {"error": "partition must be a number"}), False),
        (Answer(404, "unknown-path", {"error": "nothing answers there"}), False),
        (Answer(500, "internal", {"error": "a defect"}), False),
        (Answer(500, "local-fault", {"error": "the disk"}), False),
        (Answer(599, "", {}), False),
    ],
)
def test_answers_that_no_operator_should_get_are_wrong(answer: Answer, right: bool) -> None:
    """A result, or a documented refusal with its reason and a sentence; nothing else."""
    assert (wrong(answer, (), disturbed=False) == "") is right


def test_a_fault_of_the_disk_is_an_answer_while_something_is_broken() -> None:
    """And a refusal that an act expects, always."""
    assert wrong(Answer(500, "local-fault", {"error": "the disk"}), (), disturbed=True) == ""
    assert wrong(Answer(400, "bad-input", {"error": "there is one already"}), {"bad-input"}, disturbed=False) == ""


@pytest.mark.parametrize(("seed", "shape"), [(1, Shape((2, 2), 1)), (2, Shape((2, 2), 1, tokens=True, tls=True))])
def test_every_act_can_be_done(seed: int, shape: Shape) -> None:
    """All that a world can do, in one without faults, at any moment: none is answered wrongly, and what they changed is
    taken back."""
    chance = Random(seed)
    names = possible(StepKind.ACT, shape)
    steps = sorted(Step(chance.random() * 60, name, chance.getrandbits(48)) for name in names)
    with World(f"acts {seed}", shape) as world:
        world.start()
        world.prepare()
        world.perform(steps)
        world.heal()
        assert world.failures == []
        assert world.changed == {}


def test_a_node_that_does_not_answer_fails_the_world() -> None:
    """One that runs, as far as the world knows undisturbed; one that is cut off need not answer."""
    with World("silent", Shape((1, 1), 1)) as world:
        world.start()
        node = world.nodes[0]

        def asked() -> Answer | None:
            task = world.operators.loop.create_task(ask(Doing(world, "test", 1), node, "/admin/cluster"))
            world.run_until(task.done, 120.0, "the answer is judged")
            return task.result()

        found = asked()
        assert found is not None
        assert found.done
        world.network.cut(node.machine, world.operators)
        with pytest.raises(WrongAnswer, match="east-1, which runs undisturbed"):
            asked()
        Doing(world, "test", 1).heal_later("the cut", lambda: world.network.heal(node.machine, world.operators))
        assert asked() is None
        world.heal()
        assert asked() is not None


def test_a_command_ends_as_it_does_on_a_terminal() -> None:
    """In virtual time, with what it prints kept apart from the streams of this process: a change is made, a refusal has
    its reason, and one that cannot be typed fails the world."""
    before = sys.stdout, sys.stderr
    with World("commands", Shape((1, 1), 1)) as world:
        world.start()
        cluster = world.clusters["east"]

        def ran(*words: str) -> Ran | None:
            task = world.operators.loop.create_task(run(Doing(world, "test", 1), cluster, *words))
            world.run_until(task.done, 120.0, "the command ends")
            return task.result()

        suspended = ran("queue", "suspend", "west", "--by", "operator")
        assert suspended is not None
        assert suspended.done
        listed = ran("queue", "list")
        assert listed is not None
        assert [row["serving"] for row in listed.document["queues"]] == ["suspended"]
        refused = ran("queue", "suspend", "north", "--by", "operator")
        assert refused is not None
        assert (refused.done, refused.reason) == (False, "unknown-queue")
        with pytest.raises(WrongAnswer, match="--nonsense"):
            ran("queue", "suspend", "west", "--nonsense")
    assert (sys.stdout, sys.stderr) == before
