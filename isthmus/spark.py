"""Isthmus in programs for Spark: `from isthmus.spark import register`.

The names of `isthmus.aae.reconcile` that programs use, each imported when it is asked for: a driver that lacks a
package is told so by the name that needs it. Needs the extra `spark`; docs/spark.md shows the use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from isthmus.aae.reconcile import register
    from isthmus.aae.reconcile.batch_jobs import stats, trees
    from isthmus.aae.reconcile.client import Credentials
    from isthmus.aae.reconcile.export import export_objects, import_objects
    from isthmus.aae.reconcile.job import ReconcileOptions, findings_of, reconcile
    from isthmus.aae.reconcile.seed import seed
    from isthmus.aae.reconcile.seed_plan import AdminConnection, QueueHandOver, SeedOptions
    from isthmus.aae.reconcile.spark_session import session
    from isthmus.aae.reconcile.stream_reader import StreamLag, lag

__all__ = [
    "AdminConnection",
    "Credentials",
    "QueueHandOver",
    "ReconcileOptions",
    "SeedOptions",
    "StreamLag",
    "export_objects",
    "findings_of",
    "import_objects",
    "lag",
    "reconcile",
    "register",
    "seed",
    "session",
    "stats",
    "trees",
]

_MODULES: Final = {
    "": ("register",),
    ".batch_jobs": ("stats", "trees"),
    ".client": ("Credentials",),
    ".export": ("export_objects", "import_objects"),
    ".job": ("ReconcileOptions", "findings_of", "reconcile"),
    ".seed": ("seed",),
    ".seed_plan": ("AdminConnection", "QueueHandOver", "SeedOptions"),
    ".spark_session": ("session",),
    ".stream_reader": ("StreamLag", "lag"),
}
"""Module in `isthmus.aae.reconcile` -> its names here."""


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"isthmus.aae.reconcile{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has: {', '.join(__all__)}")
