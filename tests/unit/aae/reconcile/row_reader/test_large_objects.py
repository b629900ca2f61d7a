"""Batch jobs and objects that are larger than any frame they read, without Java."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest

from isthmus.aae.reconcile import compare_range
from isthmus.aae.reconcile.arrow_rows import schema_of
from isthmus.aae.reconcile.compare_range import SideSpec, read_runs
from isthmus.aae.reconcile.options import parse_options
from isthmus.aae.reconcile.row_reader import IsthmusReader
from isthmus.aae.reconcile.seed_tasks import _faults
from isthmus.aae.row_stream import streams, wire
from isthmus.aae.row_stream.wire import Rows, RowView
from isthmus.repl.model.entry import encode_key_row
from isthmus.repl.model.keys import SEGMENT_COUNT
from isthmus.repl.model.objects import Summary
from tests.support.threaded_node import running_node

MB = 1_000_000


def test_an_object_too_large_to_send_is_an_error_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sending the object would end the stream of its range again and again, and with it the job; it is reported with
    the limit instead, and all others are read. A comparison of bodies uses its row, and does not call it corrupt."""
    monkeypatch.setattr(wire, "FRAME_BYTES_MAX", 4 * MB)
    for module in (wire, streams, compare_range):
        monkeypatch.setattr(module, "OBJECT_BYTES_MAX", 2 * MB)
    values = {"small": 10, "near": 2 * MB - 1000, "large": 5 * MB, "other": 10}
    with running_node(tmp_path) as node:
        url = f"http://127.0.0.1:{node.http}"
        for name, size in values.items():
            put = urllib.request.Request(f"{url}/buckets/b/keys/{name}", bytes(size), method="PUT")
            urllib.request.urlopen(put, timeout=20).close()
        options = parse_options({"urls": url, "view": "objects", "give_up_after_s": "3"})
        reader = IsthmusReader(options, schema_of(RowView.OBJECTS))
        batches = [batch for part in reader.partitions() for batch in reader.read(part)]
        found = {row["key"].decode(): row for batch in batches for row in batch.to_pylist()}
        assert node.node is not None
        side = SideSpec((url,), "default", cluster=node.node._services.cluster_uuid, give_up_after_s=3)
        taken = read_runs(side, [(0, SEGMENT_COUNT)], bodies=True)
    assert found.keys() == values.keys()
    assert {name: len(row["value"]) for name, row in found.items() if row["fault"] is None} == {
        name: size for name, size in values.items() if name != "large"
    }
    large = found["large"]
    assert large["value"] is None
    assert large["fault"] == f"the object has {large['size']} bytes, batch jobs read at most {2 * MB} of one"
    assert [seen.fault for seen in taken.rows.values()] == [""] * len(values)


def test_a_seed_names_the_size_and_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object that a seed cannot copy is reported as damaged with the reason, which differs from that of a missing
    object."""
    monkeypatch.setattr(wire, "OBJECT_BYTES_MAX", 100)
    rows = Rows(
        [b"n", b"m"],
        [encode_key_row(Summary(b"clock", 7, 1, size, 1, tombstone=False), 5) for size in (101, 99)],
        [b"", b""],
    )
    assert list(_faults(rows)) == [
        "the object has 101 bytes, batch jobs read at most 100 of one",
        "the key row has no object",
    ]
