"""Deliberate defects of backups: the order of their copies."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.node.backup.create import _Backup
from isthmus.node.backup.log_copy import LogCopier
from isthmus.node.backup.store_copy import StoreCopier

Patch = pytest.MonkeyPatch


def copies_the_log_before_the_rows(patch: Patch) -> None:
    """A backup copies the log before the rows, which may then be ahead of it."""
    rows, log = StoreCopier.cut, LogCopier.cut
    before: dict[object, LogCopier] = {}
    sound = _Backup._cut

    def cut(self: _Backup, *args: Any, **more: Any) -> Any:
        before[self._store] = self._log
        return sound(self, *args, **more)

    def cut_rows(self: StoreCopier) -> Any:
        log(before[self])
        return rows(self)

    patch.setattr(_Backup, "_cut", cut)
    patch.setattr(StoreCopier, "cut", cut_rows)
    patch.setattr(LogCopier, "cut", lambda self: None)
