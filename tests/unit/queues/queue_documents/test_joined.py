"""The documents of a queue joined: their bytes, data of the version before, mixed clusters, damaged documents."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.queues.queue_documents import AuditInfo, BulkMark, QueuePaths
from isthmus.queues.queue_store import QueueStore
from isthmus.queues.rate_limit import Rates
from isthmus.repl.metastore.joined_document import JoinedDocument
from isthmus.repl.metastore.port import Versioned
from isthmus.repl.metastore.watched_document import Document
from isthmus.repl.model.errors import CodecError
from tests.support.earlier_program import register_earlier, register_present
from tests.support.memory_metastore import MemoryEnsemble, MemoryMetastore
from tests.support.queue_listings import listed_queues
from tests.support.queue_node import QueueNode
from tests.unit.queues.queue_documents.test_golden_bytes import GOLDEN

pytestmark = pytest.mark.virtual_time

PATHS = QueuePaths("q")
ACT = AuditInfo("ann", 5, "why")
FORMER: dict[str, tuple[Document[Any], Any, bytes]] = {
    document.path: (document, value, data)
    for document, value, data in reversed(GOLDEN)
    if document.path in (*PATHS.settings.paths, *PATHS.bulk.paths)
}
"""One value of each document with the bytes that the version before wrote."""

SETTINGS = (
    b'{"v":1,"owner":{"owner":"000102030405060708090a0b0c0d0e0f","cluster":"west","version":3,"since_ms":1700000000000,'
    b'"by":"w1"},"suspension":{"suspensions":[{"what":"serving","node":null,"by":"ann","at_ms":5,"reason":"r"},{"what":'
    b'"publishing","node":"e1","by":"bob","at_ms":6,"reason":""}]},"decree":{"version":7,"what":"cleared","start_ms":'
    b'1700000001000,"by":"ann@ops","at_ms":1700000000002,"reason":"because \\u00e4","positions":[[1,5],[2,900000]],'
    b'"by_time":true,"change":{"filter":"buckettype:logs","cascade":null,"was":"any","was_cascade":false,"version":5,'
    b'"since":2,"by":"ann@ops","at_ms":1700000000002,"reason":"because \\u00e4","again":true},"released":{"version":4,'
    b'"what":"released","start_ms":0,"by":"bob","at_ms":1699999999999,"reason":"","positions":[],"by_time":false,'
    b'"change":null,"released":null}},"rates":{"bytes":9,"objects":6,"by":"ann","at_ms":5,"reason":"why"},"limits":'
    b'{"queue_limit_count":5,"overflow":"discard","riak_fetch":true,"by":"ann","at_ms":7,"reason":"r"}}'
)
BULK = (
    b'{"v":1,"lost":{"lost":[{"node":"e1","priority":2,"left_out":3,"from_ms":5,"upto_ms":6,"what":"crashed","by":"",'
    b'"at_ms":7,"at_most":256},{"node":"e2","priority":1,"left_out":3,"from_ms":5,"upto_ms":6,"what":"cleared","by":'
    b'"ann","at_ms":7,"at_most":null}]},"held":{"held":[{"node":"e1","priority":2,"at_most":256,"since_ms":'
    b'1700000000000},{"node":"e2","priority":1,"at_most":2048,"since_ms":5},{"node":"e3","priority":2,"at_most":1,'
    b'"since_ms":5}]}}'
)


async def put(metastore: MemoryMetastore, path: str, value: bytes) -> None:
    """Write a value, as by hand."""
    found = await metastore.get(path)
    await metastore.put(path, value, None if found is None else found.version)


async def started(ensemble: MemoryEnsemble) -> MemoryMetastore:
    """A session on `ensemble`."""
    metastore = MemoryMetastore(ensemble)
    await metastore.start(lambda _state: None)
    return metastore


async def test_documents_of_the_version_before_are_joined_with_all_that_is_in_them() -> None:
    """While a node of the version before is live, acts are written in its form. The next acts after it write the joined
    documents, of which every byte is fixed here; what is at the former paths then can be decoded by no codec of the
    version before."""
    ensemble = MemoryEnsemble()
    metastore, earlier = await started(ensemble), await started(ensemble)
    await register_present(metastore, "n1", 1)
    await register_earlier(earlier, "n2", 2)
    for path, (_document, _value, data) in FORMER.items():
        await put(metastore, path, data)
    store = QueueStore(metastore, {})
    await store.set_rates("q", Rates(8, 6), ACT)
    await store.set_marks("q", "e3", [BulkMark("e3", 2, 7, 5)])
    for joined in (PATHS.settings, PATHS.bulk):
        assert await metastore.get(joined.path) is None
    found = await earlier.get(PATHS.rates.path)
    assert found == Versioned(b'{"bytes": 8, "objects": 6, "by": "ann", "at_ms": 5, "reason": "why"}', 1)
    assert len(await PATHS.held.read(earlier)) == 3
    await earlier.stop()
    again = await started(ensemble)
    await register_present(again, "n2", 2)
    await store.set_rates("q", Rates(9, 6), ACT)
    await store.set_marks("q", "e3", [BulkMark("e3", 2, 1, 5)])
    assert await metastore.get(PATHS.settings.path) == Versioned(SETTINGS, 0)
    assert await metastore.get(PATHS.bulk.path) == Versioned(BULK, 0)
    for joined, data in ((PATHS.settings, SETTINGS), (PATHS.bulk, BULK)):
        assert joined.encode(joined.decode(data)) == data
        for document in joined.documents:
            marker = await metastore.get(document.path)
            assert marker is not None
            assert marker.value == b'"moved to %s"' % joined.path.encode()
            with pytest.raises(CodecError):
                document.decode(marker)
    for path, (document, value, _data) in FORMER.items():
        if path not in (PATHS.rates.path, PATHS.held.path):
            assert (PATHS.settings if path in PATHS.settings.paths else PATHS.bulk).decode(
                SETTINGS if path in PATHS.settings.paths else BULK
            )[document] == value


async def joined_node(ensemble: MemoryEnsemble) -> QueueNode:
    """A started node of a cluster in which every node reads joined documents."""
    queue_node = QueueNode(ensemble=ensemble)
    await queue_node.start()
    await register_present(queue_node.metastore, "e1", 1)
    return queue_node


@pytest.mark.logs_errors("queue.metastore_value_unreadable")
@pytest.mark.parametrize("name", ["suspension", "rates"])
async def test_a_damaged_setting_hides_no_other_and_stops_serving_at_a_start(name: str) -> None:
    """What may be suspended or limited is not served by a node that starts, which says where the damaged value is; the
    limits beside it apply; the act that sets the damaged value anew ends it."""
    ensemble = MemoryEnsemble()
    queue_node = await joined_node(ensemble)
    await queue_node.fetch(wait_ms=0)
    await queue_node.acts.change_settings("q", {"queue_limit_count": 7}, ACT)
    await queue_node.crash()
    found = ensemble.read(PATHS.settings.path)
    assert found is not None
    damaged = found[0].replace(b'"limits":', b'"%s":{"x":1},"limits":' % name.encode())
    ensemble.set(PATHS.settings.path, damaged, found[1].version)
    await queue_node.start()
    (queue,) = queue_node.served()
    assert (await queue_node.fetch(wait_ms=0)).state == "suspended"
    assert queue.stored.unread == {name: f"{PATHS.settings.path}, {name}"}
    assert f"{PATHS.settings.path}, {name}" in (await listed_queues(queue_node.queues))[0]["reason"]
    assert queue.stored.limits is not None
    assert queue.stored.limits.values == {"queue_limit_count": 7}
    await (
        queue_node.acts.throttle("q", None, ACT)
        if name == "rates"
        else queue_node.acts.resume("q", "serving", None, ACT)
    )
    assert queue.stored.unread == {}
    queue_node.put(b"a")
    assert await queue_node.drain() == [b"a"]
    await queue_node.close()


@pytest.mark.logs_errors("queue.metastore_value_unreadable")
async def test_limits_are_set_beside_a_command_that_cannot_be_read() -> None:
    """They need nothing of it, and it stays as it is; a filter, which a command changes, is refused."""
    ensemble = MemoryEnsemble()
    queue_node = await joined_node(ensemble)
    await queue_node.acts.throttle("q", Rates(0, 5), ACT)
    found = ensemble.read(PATHS.settings.path)
    assert found is not None
    ensemble.set(PATHS.settings.path, found[0].replace(b'"rates":', b'"decree":{"x":1},"rates":'), found[1].version)
    await queue_node.acts.change_settings("q", {"queue_limit_count": 7}, ACT)
    (queue,) = queue_node.served()
    assert queue.stored.limits is not None
    assert queue.stored.limits.values == {"queue_limit_count": 7}
    after = ensemble.read(PATHS.settings.path)
    assert after is not None
    assert b'"decree":{"x":1}' in after[0]
    with pytest.raises(CodecError, match="decree"):
        await queue_node.acts.change_settings("q", {"filter": "any"}, ACT)
    await queue_node.close()


@pytest.mark.logs_errors("queue.metastore_value_unreadable")
async def test_a_joined_document_that_is_damaged_as_a_whole_stops_the_queue_at_a_start() -> None:
    """The node serves nothing, names the document once, and refuses acts, which would end what nobody could read. Once
    it can be read again, the queue goes on by itself."""
    ensemble = MemoryEnsemble()
    queue_node = await joined_node(ensemble)
    await queue_node.fetch(wait_ms=0)
    await queue_node.acts.throttle("q", Rates(0, 5), ACT)
    await queue_node.crash()
    good = ensemble.read(PATHS.settings.path)
    assert good is not None
    ensemble.set(PATHS.settings.path, b'{"v":2}', good[1].version)
    await queue_node.start()
    (queue,) = queue_node.served()
    reason = (await listed_queues(queue_node.queues))[0]["reason"]
    assert reason.endswith(f"cannot be read (metastore): {PATHS.settings.path}")
    for act in (queue_node.acts.throttle("q", None, ACT), queue_node.acts.resume("q", "serving", None, ACT)):
        with pytest.raises(CodecError, match=PATHS.settings.path):
            await act
    damaged = ensemble.read(PATHS.settings.path)
    assert damaged is not None
    ensemble.set(PATHS.settings.path, good[0], damaged[1].version)
    await queue_node.eventually(lambda: not queue.stored.unread)
    assert queue_node.acts.rates("q") == Rates(0, 5)
    queue_node.put(b"a")
    assert await queue_node.drain() == [b"a"]
    await queue_node.close()


@pytest.mark.parametrize("joined", [PATHS.settings, PATHS.bulk], ids=lambda one: one.path)
def test_each_document_of_a_queue_is_in_one_joined_document(joined: JoinedDocument) -> None:
    """What is read together is written together, and nothing is in both."""
    other = PATHS.bulk if joined is PATHS.settings else PATHS.settings
    assert not {*joined.paths} & {*other.paths}


async def test_a_registered_queue_begins_without_what_an_earlier_one_of_its_name_left() -> None:
    """Suspensions, rates, limits, marks and losses end with the write that has where the new queue begins."""
    ensemble = MemoryEnsemble()
    queue_node = await joined_node(ensemble)
    await queue_node.acts.register("late", {}, 0, ACT)
    await queue_node.acts.suspend("late", "serving", None, ACT)
    await queue_node.acts.throttle("late", Rates(1, 1), ACT)
    await queue_node.acts.change_settings("late", {"queue_limit_count": 7}, ACT)
    store = queue_node.queues.queue_store
    await store.set_marks("late", "e9", [BulkMark("e9", 2, 7, 5)])
    await store.record_crash("late", "e9", 6)
    await store.set_marks("late", "e8", [BulkMark("e8", 2, 7, 5)])
    await queue_node.acts.delist("late", ACT)
    await queue_node.acts.register("late", {}, 0, AuditInfo("bob", 9, "again"))
    (queue,) = [one for one in queue_node.served() if one.settings.name == "late"]
    await queue_node.queues.refresh("late")
    stored = queue.stored
    assert (stored.suspensions, stored.rates, stored.limits, stored.lost, stored.held) == ((), None, None, (), ())
    assert stored.command is not None
    assert stored.command.by == "bob"
    await queue_node.close()
