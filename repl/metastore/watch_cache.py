"""What lies directly below one path, kept here and read again only where it changed.

A look costs one `sync`; names and values are asked for only if a change of them was heard of since they were asked for
last. Sound because of the tree's order (`repl.metastore.tree_port`): the sync's answer comes after the news of every
change that was confirmed to anybody before the look began, so what is not known to be old by then is not old.
News that arrives while a value is on its way counts against that value: it is read once more at the next look.
After the connection or the session broke everything is read again, since watches do not survive that, and once
in FULL_READ_INTERVAL_S, should news ever be lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, Generic, TypeVar

from isthmus.repl.metastore.tree_port import Stat, ZnodeClient, gather_all
from isthmus.repl.model.errors import LocalFault, Unreadable

FULL_READ_INTERVAL_S: Final = 60.0
"""A safety net only: how long a value might stay wrong if news of it were lost. 64 records read in 20 ms."""

V = TypeVar("V")


class WatchCache(Generic[V]):
    """The values below `parent`, each made by `parse(name, path, value, stat)`. What is Unreadable stands in
    `unreadable`, and among the values as it was read last, with `keep`, or not at all. With `keep` so does what the
    tree refuses to read out: an access list on one path is the affair of what it is about."""

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
        """Name -> why."""
        self._old: set[str] = set()
        self._broken = True
        self._full_at_s = 0.0
        self._turn = asyncio.Lock()

    def changed(self, path: str) -> None:
        """Something was said to have changed at `path`, anywhere in the tree."""
        if path == self._parent:
            self._listed = False
        else:
            parent, _, name = path.rpartition("/")
            if parent == self._parent:
                self._old.add(name)

    def broken(self) -> None:
        """The connection or the session broke: news may have been missed."""
        self._broken = True

    async def look(self) -> Mapping[str, V]:
        """All values by name, not older than the call but for what is unreadable; the same object while nothing
        changed. Raises what the tree and `parse` raise besides; then nothing counts as known that was not read and
        parsed."""
        async with self._turn:
            await self._tree.sync()
            now_s = asyncio.get_running_loop().time()
            if self._broken or now_s >= self._full_at_s:
                self._broken = self._listed = False
                self._old.update(self._values, self.unreadable)
                self._full_at_s = now_s + FULL_READ_INTERVAL_S
            if not self._listed:
                await self._list()
            known = self._values.keys() | self.unreadable.keys()
            unread = [name for name in self._names if name in self._old or name not in known]
            if unread or len(self._names) != len(known):
                await self._read(unread)
            return self._values

    async def _list(self) -> None:
        self._listed = True  # before asking: news from here on counts against the answer
        try:
            names = await self._tree.children(self._parent, sync=False)
        except BaseException:
            self._listed = False
            raise
        if names is None:
            self._listed = False  # nothing is there, and nothing is armed
        self._names = tuple(names or ())

    async def _read(self, unread: list[str]) -> None:
        self._old.difference_update(unread)  # before asking, as above
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
        """(name, its value, why it is unreadable); neither when it is gone."""
        path = f"{self._parent}/{name}"
        try:
            found = await self._tree.read(path, armed=True, sync=False)
        except LocalFault as error:
            if not self._keep:
                raise  # that it is not told is no sign that it is gone
            return name, None, f"{path} in the metastore: {error}"
        if found is None:
            return name, None, ""
        try:
            return name, self._parse(name, path, *found), ""
        except Unreadable as error:
            return name, None, str(error)
