"""A node of the version before, as far as the metastore shows it: it does not read joined documents."""

from __future__ import annotations

from isthmus.repl.metastore.codecs import encode_log_identity, encode_registration
from isthmus.repl.model.record import Registration
from tests.support.memory_metastore import MemoryMetastore


async def register_earlier(metastore: MemoryMetastore, node: str, number: int) -> None:
    """Register `node` as the version before does, in the session of `metastore`."""
    registration = Registration(node, 0, True, id=number)
    for path, value in (
        (f"/node-ids/{number}", node.encode()),
        (f"/replicas/{node}", encode_log_identity(registration)),
    ):
        found = await metastore.get(path)
        if found is None or found.value != value:
            await metastore.put(path, value, None if found is None else found.version)
    assert await metastore.claim(f"/ids/{number}", node.encode())
    assert await metastore.claim(f"/nodes/{node}", encode_registration(registration))


async def register_present(metastore: MemoryMetastore, node: str, number: int) -> int:
    """Register `node` as this version does; returns its session id."""
    return await metastore.register(Registration(node, 0, True, id=number))
