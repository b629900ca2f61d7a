"""A cache of the values directly below one path, read again only where they changed.

A read costs one `sync`; names and values are fetched only after a watch event for them. This is sound because of the
tree's order (`repl.metastore.tree_port`): the sync's answer comes after the events of every change that was confirmed
before the read began, so a value without an event is current. An event that arrives while its value is being fetched
invalidates that value, which is fetched again by the next read. Values that are known to be invalid are requested
together with the sync: their answers come after its answer, so a read after one event costs one round trip. After the
connection or the session broke, everything is read again, since watches do not survive that, and so it is every
FULL_READ_INTERVAL_S, in case an event is ever lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Set
from typing import Final, Generic, TypeVar

from isthmus.repl.metastore.tree_port import Stat, ZnodeClient, gather_all
from isthmus.repl.model.errors import IsthmusError, LocalFault, Unreadable
from isthmus.repl.unforeseen import unforeseen

FULL_READ_INTERVAL_S: Final = 60.0
"""A safety net: how long a value stays wrong if an event is lost. 64 records are read in 20 ms."""

V = TypeVar("V")


class WatchCache(Generic[V]):
    """The values below `parent`, each decoded by `parse(name, path, value, stat)`. An Unreadable value is listed in
    `unreadable`, and so is one at which `parse` raises an exception that nobody foresaw; with `keep` its last readable
    version stays among the values, otherwise it is left out. With `keep` the same goes for a value that the tree
    refuses to read (an access list on one path)."""

    def __init__(
        self, tree: ZnodeClient, parent: str, parse: Callable[[str, str, bytes, Stat], V], *, keep: bool
    ) -> None:
        self._tree = tree
        self._parent = parent
        self._parse = parse
        self._keep = keep
        self._names: tuple[str, ...] = ()
        self._listed = False
        self._values: Mapping[str, V] = {}
        self.unreadable: Mapping[str, str] = {}
        """Name -> why it cannot be read."""
        self._old: set[str] = set()
        self._broken = True
        self._full_at_s = 0.0
        self._turn = asyncio.Lock()

    def changed(self, path: str) -> None:
        """Handle a watch event at `path`, anywhere in the tree."""
        if path == self._parent:
            self._listed = False
        else:
            parent, _, name = path.rpartition("/")
            if parent == self._parent:
                self._old.add(name)

    def broken(self) -> None:
        """Invalidate everything: the connection or the session broke, and events may be lost."""
        self._broken = True

    async def look(self, *, sync: bool = True) -> Mapping[str, V]:
        """All values by name; the same object while nothing changed. With `sync` none is older than the call, except
        unreadable ones; without, none is older than anything that this connection had answered before the call.

        Raises what the tree and `parse` raise; then only what was read and parsed counts as known."""
        async with self._turn:
            if sync:
                await self._sync()
            now_s = asyncio.get_running_loop().time()
            if self._broken or now_s >= self._full_at_s:
                self._broken = self._listed = False
                self._old.update(self._values, self.unreadable)
                self._full_at_s = now_s + FULL_READ_INTERVAL_S
            if not self._listed:
                await self._list()
            unread = self._unread()
            if unread or len(self._names) != len(self._known()):
                await self._read(unread)
            return self._values

    async def _sync(self) -> None:
        """Sync, and read what is known to be invalid."""
        unread = self._unread() if self._listed and not self._broken else []
        if unread:
            await gather_all(self._tree.sync(), self._read(unread))
        else:
            await self._tree.sync()

    def _known(self) -> Set[str]:
        return self._values.keys() | self.unreadable.keys()

    def _unread(self) -> list[str]:
        known = self._known()
        return [name for name in self._names if name in self._old or name not in known]

    async def _list(self) -> None:
        self._listed = True  # before the read: an event from here on invalidates its result
        try:
            names = await self._tree.children(self._parent, sync=False)
        except BaseException:
            self._listed = False
            raise
        if names is None:
            self._listed = False  # there is nothing, and no watch
        self._names = tuple(names or ())

    async def _read(self, unread: list[str]) -> None:
        self._old.difference_update(unread)  # before the read, as above
        try:
            read = await gather_all(*map(self._value, unread))
        except BaseException:
            self._old.update(unread)
            raise
        asked = set(unread)
        values = {name: self._values[name] for name in self._names if name not in asked and name in self._values}
        wrong = {name: self.unreadable[name] for name in self._names if name not in asked and name in self.unreadable}
        for name, value, why in read:
            if why:
                wrong[name] = why
            if value is not None:
                values[name] = value
            elif why and self._keep and name in self._values:
                values[name] = self._values[name]
        self._values, self.unreadable = values, wrong
        self._old.intersection_update(self._names)

    async def _value(self, name: str) -> tuple[str, V | None, str]:
        """(name, its value, why it is unreadable); neither value nor reason if it is gone."""
        path = f"{self._parent}/{name}"
        try:
            found = await self._tree.read(path, armed=True, sync=False)
        except LocalFault as error:
            if not self._keep:
                raise  # a refused read does not mean that it is gone
            return name, None, f"{path} in the metastore: {error}"
        if found is None:
            return name, None, ""
        try:
            return name, self._parse(name, path, *found), ""
        except Unreadable as error:
            return name, None, str(error)
        except IsthmusError:
            raise
        except Exception as error:  # noqa: BLE001 -- the other values are read
            why = unforeseen.exception("metastore.value_bug", error, path=path)
            return name, None, f"{path} in the metastore: {why}"
