"""Dynamic options in the metastore and their effect on controllers: min-ISR in the records, timers of elections."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from isthmus.repl.controller import controller
from isthmus.repl.controller.bucket_types import DefaultType
from isthmus.repl.controller.dynamic_options import (
    OPTIONS_PATH,
    OptionSettings,
    change_option,
    decode_options,
    effective_min_isr,
    encode_options,
    read_options,
)
from isthmus.repl.controller.election import TIMERS, Timers, response_timeout_ms
from isthmus.repl.controller.stored_setting import ChangedMeanwhile, Setting
from isthmus.repl.model.errors import NotReady
from isthmus.repl.model.record import Member, PartitionRecord
from tests.support.controller_cluster import Cluster, eventually, running
from tests.support.memory_metastore import MemoryEnsemble, MemoryMetastore, WriteFault

pytestmark = pytest.mark.virtual_time

MIN_ISR = "replication.min.isr"
SMALL = DefaultType(partition_count=4, factor=3, settle_ms=0)


@pytest.fixture(autouse=True)
def _without_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Polling is too slow to matter: every effect follows from an event."""
    monkeypatch.setattr(controller, "POLL_MS", 60_000)


def a_setting(value: int | str) -> Setting:
    """A setting with an author and a time."""
    return Setting(value, "ann@desk", 17)


def min_isrs(cluster: Cluster) -> list[set[int]]:
    """The values of min-ISR in the records that each living node has read."""
    return [{record.min_isr for record in node.controller.records.values()} for node in cluster.living]


async def change(cluster: Cluster, name: str, value: int | str | None, kind: str | None = None) -> None:
    """Changes an option as a node that is not the controller would."""
    metastore = cluster.living[-1].metastore
    await change_option(metastore, name, kind, None if value is None else a_setting(value))


async def test_min_isr_reaches_every_record_as_it_is_set_and_falls_back_to_one_less_than_the_factor() -> None:
    """A value is set, set beyond the range, and unset: the controller updates all records, with effective values in
    range."""

    async with running(SMALL, 1, 2, 3) as cluster:
        await eventually(cluster.online)
        for value, recorded, effective in ((3, 3, 3), (9, 9, 3), (-2, 1, 1), (None, 2, 2)):
            await change(cluster, MIN_ISR, value)
            await eventually(lambda recorded=recorded: min_isrs(cluster) == [{recorded}] * 3)  # type: ignore[misc]
            assert {r.effective_min_isr for r in cluster.records.values()} == {effective}
            options = cluster.living[0].controller.options
            assert {effective_min_isr(r, options) for r in cluster.records.values()} == {effective}
        assert cluster.online()


async def test_a_bucket_types_own_setting_comes_before_the_clusters() -> None:
    """When it is unset, the cluster's setting applies again."""

    async with running(SMALL, 1, 2, 3) as cluster:
        await eventually(cluster.online)
        await change(cluster, MIN_ISR, 3)
        await eventually(lambda: min_isrs(cluster) == [{3}] * 3)
        await change(cluster, MIN_ISR, 1, "default")
        await eventually(lambda: min_isrs(cluster) == [{1}] * 3)
        await change(cluster, MIN_ISR, None, "default")
        await eventually(lambda: min_isrs(cluster) == [{3}] * 3)


async def test_the_next_controller_finishes_an_unfinished_change() -> None:
    """The option is set while no controller is active; the next one writes it to the records."""

    async with running(SMALL, 1, 2, 3) as cluster:
        await eventually(cluster.online)
        first = cluster.nodes[cluster.decides()[0]]
        first.metastore.spoil(*[WriteFault.REQUEST_LOST] * 8)
        await change(cluster, MIN_ISR, 3)
        await asyncio.sleep(0.05)
        await first.die()
        await eventually(lambda: all(found == {3} for found in min_isrs(cluster)))


async def test_a_node_that_never_could_read_what_is_set_leaves_the_records_as_they_are() -> None:
    """As the controller, it does not take an unreadable document for an empty one; elections continue, and min-ISR is
    updated as soon as the document can be read."""

    async with running(SMALL, 1, 2, 3) as cluster:
        await eventually(cluster.online)
        await change(cluster, MIN_ISR, 3)
        await eventually(lambda: min_isrs(cluster) == [{3}] * 3)
        metastore = cluster.living[0].metastore
        found = await metastore.get(OPTIONS_PATH)
        assert found is not None
        spoilt = await metastore.put(OPTIONS_PATH, b'{"v":2}', found.version)
        (late,) = await cluster.add(4)
        for node in cluster.living[:2]:
            await node.die()
        cluster.nodes["n3"].controller.wake()
        await cluster.nodes["n3"].controller.resign()
        await eventually(lambda: late.controller.decides)
        await eventually(lambda: all("n3" in str(r.leader) for r in late.controller.records.values()))
        await asyncio.sleep(0.1)
        assert min_isrs(cluster) == [{3}] * 2
        options = replace(decode_options(found), version=spoilt).with_setting(MIN_ISR, None, a_setting(1))
        await late.metastore.put(OPTIONS_PATH, encode_options(options), spoilt)
        await eventually(lambda: min_isrs(cluster) == [{1}] * 2)


async def test_new_bucket_types_take_the_min_isr_that_is_set() -> None:
    """A type that is created later begins with it."""

    async with running(SMALL, 1, 2, 3) as cluster:
        await eventually(cluster.online)
        await change(cluster, MIN_ISR, 3)
        await cluster.living[1].controller.assign("notes", ((1, 2, 3), (2, 3, 1)), validate_only=False)
        records = await cluster.living[0].metastore.records()
        assert {r.min_isr for r in records.values() if r.bucket_type == "notes"} == {3}


async def test_a_files_min_isr_counts_when_the_cluster_is_founded_and_can_be_seen_and_unset() -> None:
    """It becomes the cluster's setting, by that node's file; from then on it is the operators'."""

    async with running(replace(SMALL, min_isr=1), 1, 2, 3) as cluster:
        await eventually(cluster.online)
        assert min_isrs(cluster)[0] == {1}
        found = (await read_options(cluster.living[0].metastore)).cluster[MIN_ISR]
        assert (found.value, found.by) == (1, "the file of node n1")
        await change(cluster, MIN_ISR, None)
        await eventually(lambda: min_isrs(cluster) == [{2}] * 3)


async def test_lowering_min_isr_leaves_the_elr_to_the_leader() -> None:
    """The controller's write changes min-ISR and nothing else (H22)."""

    async with running(SMALL, 1, 2, 3) as cluster:
        await eventually(cluster.online)
        metastore = cluster.living[0].metastore
        for record in (await metastore.records()).values():
            assert record.leader is not None
            stays = frozenset(m for m in record.isr if m.node == record.leader.node)
            await metastore.write_record(replace(record, isr=stays, elr=record.isr - stays))
        before = await metastore.records()
        await change(cluster, MIN_ISR, 1)
        await eventually(lambda: min_isrs(cluster) == [{1}] * 3)
        after = cluster.records
        assert {p: replace(r, min_isr=2) for p, r in after.items()} == before
        assert all(len(r.elr) == 2 for r in after.values())


def test_an_unset_min_isr_follows_the_number_of_replicas() -> None:
    """An inferred value is computed again when the replication factor changes; a set value is clamped again."""
    record = PartitionRecord(0, "default", 0, 1, ("a", "b", "c"), isr=frozenset({Member("a", 1)}))
    wider = replace(record, replicas=(*record.replicas, "d", "e"))
    unset, five = OptionSettings(), OptionSettings(cluster={MIN_ISR: a_setting(5)})
    assert [effective_min_isr(r, unset) for r in (record, wider)] == [2, 4]
    assert [effective_min_isr(r, five) for r in (record, wider)] == [3, 5]


async def test_the_timers_of_elections_are_those_that_are_set() -> None:
    """A silent candidate is given up after the configured time, in the whole cluster and without a restart."""

    async with running(SMALL, 1, 2, 3) as cluster:
        await eventually(cluster.online)
        await change(cluster, "election.response.min.millis", 100)
        await change(cluster, "election.response.max.millis", 100)
        await eventually(lambda: all(n.controller.options.timers().response_max_ms == 100 for n in cluster.living))
        cluster.nodes["n2"].mute = True
        loop = asyncio.get_running_loop()
        began = loop.time()
        await cluster.nodes["n1"].die()
        cluster.nodes["n3"].leo = dict.fromkeys(range(4), 1)
        cluster.nodes["n2"].leo = dict.fromkeys(range(4), 2)  # nominated first, and silent
        await eventually(lambda: cluster.online() and not cluster.leads()["n1"])
        assert loop.time() - began < 1.9, "the default is 2 s"
    assert OptionSettings().timers() == TIMERS
    assert response_timeout_ms(9, Timers(response_min_ms=500, response_max_ms=100)) == 500


async def test_an_option_is_changed_once_although_the_answer_is_lost() -> None:
    """The change survives a lost answer, a lost request, and a concurrent change."""

    ensemble = MemoryEnsemble()
    one, two = MemoryMetastore(ensemble), MemoryMetastore(ensemble)
    for metastore in (one, two):
        await metastore.start(lambda _state: None)
    one.spoil(WriteFault.REQUEST_LOST, WriteFault.ANSWER_LOST)
    found = await change_option(one, MIN_ISR, None, a_setting(2))
    assert found.cluster == {MIN_ISR: a_setting(2)}
    await asyncio.gather(
        change_option(one, MIN_ISR, "a", a_setting(1)),
        change_option(two, "read.isolation.default", None, a_setting("x")),
    )
    found = await read_options(one)
    assert found.types == {"a": {MIN_ISR: a_setting(1)}}
    assert found.setting("read.isolation.default") is None, "a value of no meaning here does not count"
    assert found.setting(MIN_ISR, "a") == a_setting(1)
    assert found.setting(MIN_ISR, "b") == a_setting(2)
    assert decode_options(await two.get(OPTIONS_PATH)) == found
    version = found.version
    assert (await change_option(two, "election.ask.millis", None, None)).version == version, "nothing to unset"
    assert encode_options(found.with_setting(MIN_ISR, "a", None)).endswith(b'"types":{}}')
    await one.stop()
    with pytest.raises(NotReady):
        await change_option(one, MIN_ISR, None, a_setting(3))
    await two.stop()


async def test_of_two_operators_who_saw_the_same_the_second_is_refused() -> None:
    """This holds if both write at the same time at two nodes, and if the answer to the first write is lost: its own
    change does not conflict with itself."""

    ensemble = MemoryEnsemble()
    one, two = MemoryMetastore(ensemble), MemoryMetastore(ensemble)
    for metastore in (one, two):
        await metastore.start(lambda _state: None)
    one.spoil(WriteFault.ANSWER_LOST)
    assert (await change_option(one, MIN_ISR, None, a_setting(2), None)).cluster == {MIN_ISR: a_setting(2)}
    results = await asyncio.gather(
        change_option(one, MIN_ISR, None, a_setting(3), 2),
        change_option(two, MIN_ISR, None, a_setting(1), 2),
        return_exceptions=True,
    )
    assert [type(each) for each in results].count(ChangedMeanwhile) == 1
    (kept,) = (each for each in results if isinstance(each, OptionSettings))
    assert (await read_options(one)).cluster == kept.cluster
    one.spoil(WriteFault.ANSWER_LOST)
    value = kept.cluster[MIN_ISR].value
    with pytest.raises(ChangedMeanwhile, match=f"it was not set, it is set to {value} now, by ann@desk"):
        await change_option(two, MIN_ISR, None, None, None)
    assert (await change_option(one, MIN_ISR, None, None, value)).cluster == {}
    with pytest.raises(ChangedMeanwhile, match="it was set to 1, it is not set now"):
        await change_option(two, MIN_ISR, None, a_setting(4), 1)
    for metastore in (one, two):
        await metastore.stop()


async def test_a_document_that_cannot_be_read_stops_no_election() -> None:
    """The values read before stay in force, and leaders are elected."""

    async with running(SMALL, 1, 2, 3) as cluster:
        await eventually(cluster.online)
        await change(cluster, MIN_ISR, 3)
        await eventually(lambda: min_isrs(cluster) == [{3}] * 3)
        metastore = cluster.living[1].metastore
        found = await metastore.get(OPTIONS_PATH)
        assert found is not None
        await metastore.put(OPTIONS_PATH, b"{", found.version)
        await cluster.nodes["n1"].die()
        await eventually(lambda: cluster.online() and not cluster.leads()["n1"])
        assert min_isrs(cluster) == [{3}] * 2
