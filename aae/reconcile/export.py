"""`export` and `import`: objects as Parquet and back, with clocks and tombstones.

A large export is written in slices of the key space, each an atomically written directory of Spark:

    PATH/slice=N/       Parquet files: bucket_type, bucket, key, last_modified, object
    PATH/_export.json   the options, and which slices are done

so a killed export is resumed, and `spark.read.parquet(PATH)` reads all. An import may be repeated, too; with a run id
finished slices are not pushed again. On other file systems (`hdfs://`, `s3a://`) a slice is done if it has Spark's
`_SUCCESS`, since files there are written once. RunFileSystem reads and writes small documents there through the file
systems of Spark's Java.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from isthmus.aae.reconcile.batch_jobs import NO_OPTIONS, read, source_options
from isthmus.aae.reconcile.client import ReplicaDirectory, fetch_plan
from isthmus.aae.reconcile.options import parse_options
from isthmus.aae.run_directory import IMPORT, ProgressFile, RunDirectory, write_json
from isthmus.repl.model.errors import BadInput, LocalFault


def is_store(path: str) -> bool:
    """True for a path on another file system than this machine's."""
    return "://" in path


class RunFileSystem:
    """One directory. Its methods raise LocalFault for an unknown file system, and for its errors."""

    def __init__(self, spark: SparkSession, url: str) -> None:
        self.url = url.rstrip("/")
        self._spark = spark

    def has(self, name: str) -> bool:
        """True if a file or directory of that name exists below."""
        return bool(self._asked(name, lambda files, path: files.exists(path)))

    def is_empty(self) -> bool:
        """True if it contains nothing."""
        return not self._asked("", lambda files, path: files.exists(path) and len(files.listStatus(path)) > 0)

    def read(self, name: str) -> str | None:
        """The text of a file; None if there is none."""
        return self._asked(name, self._text) if self.has(name) else None

    def write(self, name: str, text: str) -> None:
        """Write a file."""

        def put(files: Any, path: Any) -> None:
            out = files.create(path, True)
            out.write(bytearray(text.encode()))
            out.close()

        self._asked(name, put)

    def _text(self, files: Any, path: Any) -> str:
        stream = files.open(path)
        try:
            return str(self._java.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    @property
    def _java(self) -> Any:
        """PySpark offers no other access to Hadoop's file systems."""
        return self._spark._jvm

    def _asked(self, name: str, ask: Any) -> Any:
        where = f"{self.url}/{name}" if name else self.url
        try:
            path = self._java.org.apache.hadoop.fs.Path(where)
            configuration = self._spark._jsc.hadoopConfiguration()
            return ask(path.getFileSystem(configuration), path)
        except Py4JJavaError as error:
            raise LocalFault(f"{where}: {str(error.java_exception).splitlines()[0][:300]}") from error
        except Py4JError as error:
            raise LocalFault(f"{where}: {str(error).splitlines()[0][:300]}") from error


EXPORTED: Final = "bucket_type,bucket,key,last_modified,object"

MARK: Final = "_export.json"
"""Begins with an underscore, so that Parquet readers skip it."""

SLICE_ROWS: Final = 1_000_000
"""Approximate objects of a slice: a gigabyte, and about a minute's work that a killed export repeats."""

SLICES_MAX: Final = 4_096

Progress = Callable[[str], None]
"""Receives a line of progress."""


def export_objects(
    spark: SparkSession,
    urls: str,
    bucket_type: str,
    bucket: str,
    path: str,
    options: Mapping[str, str] = NO_OPTIONS,
    progress: Progress | None = None,
) -> int:
    """Write all objects with clocks, also tombstones, as Parquet; returns how many. Resumes an export with the same
    options; other data at the path is refused, since it would look complete. Raises BadInput."""
    asked = source_options(urls, bucket_type, bucket, options)
    store = RunFileSystem(spark, path) if is_store(path) else None
    root = str(Path(path).absolute()) if store is None else store.url
    known = known_part(path, asked) if store is None else _stored_state(store, _question(asked))
    plan = _plan(asked)
    state = known or {
        "asked": _question(asked), "slices": _slices(asked, plan), "done": [], "cluster": plan.cluster.hex()
    }  # fmt: skip
    _check_cluster(root, state, plan)
    first, end = parse_options(asked).segments
    count = state["slices"]
    if store is None:
        write_json(Path(root), MARK, state)
    elif known is None:
        store.write(MARK, json.dumps(state))
    for number in range(count):
        if number in state["done"]:
            continue
        _check_cluster(root, state, _plan(asked))
        cuts = [first + (end - first) * (number + at) // count for at in range(2)]
        rows = read(spark, **_args(asked), view="objects", columns=f"{EXPORTED},fault", segments=f"{cuts[0]}-{cuts[1]}")
        _write(rows, f"{root}/{_slice(number)}")
        state["done"].append(number)
        if store is None:
            write_json(Path(root), MARK, state)
        if progress is not None and count > 1:
            progress(f"exported {len(state['done'])} of {count} slices")
    return _count(spark, root)


def import_objects(
    spark: SparkSession,
    path: str,
    urls: str,
    options: Mapping[str, str] = NO_OPTIONS,
    directory: RunDirectory | None = None,
    progress: Progress | None = None,
) -> int:
    """Push an export into a cluster with its clocks; returns its number of rows. Repeating it changes nothing.

    `directory` records the finished slices and the target cluster. The fields bucket, prefix and times of `options`
    select rows. Raises BadInput."""
    chosen = parse_options({"urls": urls, **options})
    sending = {name: value for name, value in options.items() if name not in _CHOOSING}
    slices = _stored_slices(RunFileSystem(spark, path)) if is_store(path) else check_whole(path)
    path = path if is_store(path) else str(Path(path).absolute())
    done: list[str] = []
    file: ProgressFile | None = None
    if directory is not None:
        plan = fetch_plan(chosen.urls, chosen.credentials, chosen.bucket_type)
        about = {name: options[name] for name in _CHOOSING & options.keys()}
        directory.open({"path": path, "urls": urls, "cluster": plan.cluster.hex(), **about})
        done = (directory.read("done.json") or {"slices": []})["slices"]
        file = ProgressFile(directory)
        file.clusters = [plan.cluster_name]
    with nullcontext() if file is None else file.attempt():
        rows = 0
        for at, one in enumerate(slices or [path], 1):
            objects = _chosen(spark.read.parquet(one), chosen)
            if one not in done:
                wanted = objects.select("bucket_type", "bucket", "key", "object")
                wanted.write.format("isthmus").mode("append").options(urls=urls, **sending).save()
                done.append(one)
                if directory is not None:
                    directory.write("done.json", {"slices": done})
            rows += int(objects.count())
            if file is not None:
                file.note("push", at, len(slices) or 1, counts={"objects": rows})
            if progress is not None and len(slices) > 1:
                progress(f"imported {at} of {len(slices)} slices, {rows:,} rows")
    return rows


def check_whole(path: str) -> list[str]:
    """The slices of an export, none for other Parquet. Raises BadInput for an incomplete export; other file systems are
    checked once Spark runs."""
    if is_store(path):
        return []
    if not Path(path).exists():
        raise BadInput(f"{path}: there is no export")
    root = Path(path).absolute()
    slices = [str(one) for one in sorted(root.glob("slice=*"))]
    state = _read_mark(root) if root.is_dir() else None
    _check_finished(path, state)
    if state is not None:
        wanted = {_slice(number) for number in range(state["slices"])}
        lost = sorted(wanted - {Path(one).name for one in slices})
        if lost:
            raise BadInput(f"{path}: of the export {', '.join(lost)} {'is' if len(lost) == 1 else 'are'} missing")
    return slices


def _check_finished(path: str, state: Mapping[str, Any] | None) -> None:
    if state is not None and len(state["done"]) < state["slices"]:
        raise BadInput(f"{path}: the export is not finished: {len(state['done'])} of {state['slices']} slices are")


def import_directory(output: str, run_id: str) -> RunDirectory:
    """The directory that records an import. Raises BadInput."""
    return RunDirectory(output, run_id, IMPORT)


_ABOUT: Final = frozenset(
    {"bucket_type", "bucket", "prefix", "segments", "modified_since", "modified_before", "consistency"}
)
"""Options that say which objects an export has; the others say how it is made."""

_CHOOSING: Final = frozenset({"bucket", "prefix", "modified_since", "modified_before"})


def _chosen(rows: DataFrame, chosen: Any) -> DataFrame:
    if chosen.bucket:
        rows = rows.where(F.col("bucket") == F.lit(chosen.bucket))
    if chosen.prefix:
        rows = rows.where(F.startswith(F.col("key"), F.lit(chosen.prefix)))
    modified_ms = F.unix_millis("last_modified")
    if chosen.modified_since_ms:
        rows = rows.where(modified_ms >= chosen.modified_since_ms)
    if chosen.modified_before_ms:
        rows = rows.where(modified_ms < chosen.modified_before_ms)
    return rows


def _args(asked: Mapping[str, str]) -> dict[str, Any]:
    """Arguments of `batch_jobs.read`."""
    rest = {name: value for name, value in asked.items() if name not in ("urls", "bucket_type", "segments")}
    return {"urls": asked["urls"], "bucket_type": asked["bucket_type"], "options": rest}


def _write(rows: DataFrame, path: str) -> None:
    name = (F.col(column).cast("string") for column in ("bucket", "key"))
    damaged = F.raise_error(F.concat(F.lit("damaged: "), F.concat_ws("/", *name), F.lit(": "), F.col("fault")))
    sound = rows.withColumn("object", F.when(F.col("fault").isNotNull(), damaged).otherwise(F.col("object")))
    sound.drop("fault").write.mode("overwrite").parquet(path)


def _plan(asked: Mapping[str, str]) -> ReplicaDirectory:
    options = parse_options(asked)
    return fetch_plan(options.urls, options.credentials, options.bucket_type)


def _slices(asked: Mapping[str, str], plan: ReplicaDirectory) -> int:
    first, end = parse_options(asked).segments
    rows = sum(one.rows_estimate or 0 for one in plan.partitions if one.first < end and first < one.end)
    return max(1, min(rows // SLICE_ROWS + 1, SLICES_MAX, end - first))


def _check_cluster(path: str, state: Mapping[str, Any], plan: ReplicaDirectory) -> None:
    """Raises BadInput if the next slice would be of another cluster than the previous ones."""
    if state["cluster"] != plan.cluster.hex():
        raise BadInput(
            f"{path} has a part of an export of cluster {state['cluster']}; {plan.cluster_name}, which the URLs lead"
            f" to, is {plan.cluster.hex()}: name a new directory"
        )


def known_part(path: str, asked: Mapping[str, str]) -> dict[str, Any] | None:
    """Progress of the export at a path; None if there is none. Other file systems are checked once Spark runs. `asked`:
    as from `batch_jobs.source_options`. Raises BadInput for anything else at the path."""
    return None if is_store(path) else _state(Path(path).absolute(), _question(asked))


def _question(asked: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in asked.items() if name in _ABOUT}


def _state(root: Path, question: Mapping[str, str]) -> dict[str, Any] | None:
    """As `known_part`, for a local path."""
    if not root.exists() or (root.is_dir() and not any(root.iterdir())):
        return None
    return _part(str(root), _read_mark(root), question)


def _stored_state(store: RunFileSystem, question: Mapping[str, str]) -> dict[str, Any] | None:
    """As `known_part`, for another file system."""
    return None if store.is_empty() else _part(store.url, _stored_mark(store), question)


def _part(path: str, state: dict[str, Any] | None, question: Mapping[str, str]) -> dict[str, Any]:
    if state is None:
        raise BadInput(f"{path} exists already, and is not an export: name a new directory")
    if state["asked"] != question:
        raise BadInput(f"{path} has an export of something else: {state['asked']}; name a new directory")
    if len(state["done"]) == state["slices"]:
        raise BadInput(f"{path} has this export already: name a new directory")
    return state


def _stored_slices(store: RunFileSystem) -> list[str]:
    """As `check_whole`."""
    if store.is_empty():
        raise BadInput(f"{store.url}: there is no export")
    state = _stored_mark(store)
    _check_finished(store.url, state)
    return [] if state is None else [f"{store.url}/{_slice(number)}" for number in range(state["slices"])]


def _stored_mark(store: RunFileSystem) -> dict[str, Any] | None:
    text = store.read(MARK)
    if text is None:
        return None
    state = _parsed(f"{store.url}/{MARK}", text)
    return state | {"done": [at for at in range(state["slices"]) if store.has(f"{_slice(at)}/_SUCCESS")]}


def _slice(number: int) -> str:
    return f"slice={number:04}"


def _read_mark(root: Path) -> dict[str, Any] | None:
    try:
        return _parsed(str(root / MARK), (root / MARK).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise LocalFault(f"{root / MARK} cannot be read: {error!r:.100}") from error


def _parsed(path: str, text: str) -> dict[str, Any]:
    try:
        raw = json.loads(text)
        done = list(map(int, raw["done"]))
        cluster = str(raw.get("cluster", "unknown"))
        return {"asked": dict(raw["asked"]), "slices": int(raw["slices"]), "done": done, "cluster": cluster}
    except (ValueError, KeyError, TypeError) as error:
        raise LocalFault(f"{path} cannot be read: {error!r:.100}") from error


def _count(spark: SparkSession, path: str) -> int:
    return int(spark.read.parquet(path).count())
