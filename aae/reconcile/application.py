"""`isthmus reconcile run` as an application for spark-submit, without the command line's dependencies."""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

ERROR: Final = 2
"""Exit code of a run without a result."""


def _seconds(text: str) -> float:
    from isthmus.config.units import parse_duration

    try:
        return parse_duration(text) / 1000
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _moment(text: str) -> int:
    from isthmus.aae.reconcile.options import parse_time_ms

    try:
        return parse_time_ms(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _end(text: str) -> int:
    from isthmus.aae.reconcile.options import parse_before_ms

    try:
        return parse_before_ms(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _bytes(text: str) -> bytes:
    from isthmus.aae.reconcile.options import parse_bytes

    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


FLAGS: Final[tuple[tuple[str, str, Callable[[str], Any] | None, str], ...]] = (
    ("--bucket-type", "bucket_type", str, "which bucket type; default"),
    ("--bucket", "bucket", _bytes, "only keys of this bucket; bytes that are not UTF-8 as 0xff00"),
    ("--modified-since", "modified_since_ms", _moment, "only keys that either side changed since then"),
    ("--modified-before", "modified_before_ms", _end, "only keys that either side changed before then"),
    ("--full", "full", None, "read all, without asking trees"),
    ("--bodies", "bodies", None, "read objects too, and compare each with the hash in its key row; implies --full"),
    ("--sample", "sample", float, "compare only this part of the segments, such as 0.01"),
    ("--max-differences", "max_differences", int, "most findings that are stored; totals stay exact"),
    ("--max-time", "max_time_s", _seconds, "begin no further work after this time, such as 10m"),
    ("--settle", "settle_s", _seconds, "pause before the second look, such as 10s"),
    ("--filter", "filter", str, "a queue's filter: keys that it does not select are `filtered`"),
    ("--rate", "rows_per_second", int, "rows a second of each cluster; 0: no limit"),
    (
        "--give-up-after",
        "give_up_after_s",
        lambda text: max(1, round(_seconds(text))),
        "how long to retry a cluster that does not answer",
    ),
    ("--token-file", "token_file", str, "a token for both clusters; the path is read on every worker"),
    ("--right-token-file", "right_token_file", str, "one for the right cluster, if it has others"),
    ("--ca", "ca_file", str, "trusted certificate authorities"),
    ("--cert", "certificate_file", str, "the certificate for nodes that require one"),
    ("--key", "key_file", str, "its key"),
)
"""(flag, field of ReconcileOptions, parser of its text, help text); parser None: a switch. `isthmus reconcile run` has
the same options."""


OLD_FLAGS: Final[Mapping[str, str]] = {
    "--rate-limit": "--rate",
    "--ca-file": "--ca",
    "--certificate-file": "--cert",
    "--key-file": "--key",
}
"""Older name of a flag, which is accepted and not shown -> the flag."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, or resume, a comparison; returns its exit code."""
    from isthmus.aae.reconcile.job import ReconcileOptions, check, run
    from isthmus.aae.reconcile.spark_session import session
    from isthmus.repl.model.errors import IsthmusError

    words = sys.argv[1:] if arguments is None else arguments
    given = vars(_parser().parse_args([_renamed(word) for word in words]))
    left, right = given.pop("left"), given.pop("right")
    if given.get("run_id") is None:
        given["run_id"] = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    try:
        options = ReconcileOptions(**given)
        check(left, right, options)
        spark = session(f"isthmus reconcile {given['run_id']}")
        try:
            summary = run(spark, left, right, options, _progress)
        finally:
            spark.stop()
    except IsthmusError as error:
        _progress(f"error: {error}")
        return ERROR
    except Exception:  # noqa: BLE001 - an uncaught exception exits with 1, which means `differ`
        traceback.print_exc()
        return ERROR
    print(json.dumps(summary), flush=True)
    return int(summary["exit_code"])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "application.py", description="Compare two clusters key by key.", argument_default=argparse.SUPPRESS
    )
    parser.add_argument("--left", required=True, metavar="URL[,URL...]", help="HTTP listeners of nodes of one cluster")
    parser.add_argument(
        "--right", required=True, metavar="URL[,URL...]", help="HTTP listeners of nodes of the other cluster"
    )
    parser.add_argument(
        "--dir", dest="output", required=True, help="directory of runs, which driver and workers can write to"
    )
    parser.add_argument("--run-id", default=None, help="resume the run of this id; without it a new run begins")
    for flag, field, kind, meaning in FLAGS:
        if kind is None:
            parser.add_argument(flag, dest=field, action="store_true", help=meaning)
        else:
            parser.add_argument(flag, dest=field, type=kind, help=meaning)
    return parser


def _renamed(word: str) -> str:
    """An argument with the flag that stands for an older one."""
    flag, equals, value = word.partition("=")
    return OLD_FLAGS.get(flag, flag) + equals + value


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
