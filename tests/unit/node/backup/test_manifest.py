"""The manifest of a backup: a written manifest is read back, and any other is refused."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from xxhash import xxh64_hexdigest

from isthmus.node.backup.manifest import (
    NAME,
    VERSION,
    BackupFile,
    Manifest,
    PartitionPosition,
    decode,
    encode,
    hash_file,
    load,
)
from isthmus.repl.model.errors import BadInput, Corruption, LocalFault

WHERE = Path("backup.json")

MANIFEST = Manifest(
    version=VERSION,
    program="1.0",
    cluster="east",
    cluster_uuid="ab" * 16,
    node="east-1",
    begun_ms=1_000,
    ended_ms=2_000,
    metastore_copy_ms=None,
    partitions=[PartitionPosition(0, 7, 5, 2, 9, False), PartitionPosition(1, None, 0, 0, 0, True)],
    files=[BackupFile("log/0000000000000001.log", 3, "00" * 8)],
)


def test_a_manifest_is_read_back() -> None:
    """Encoded and decoded, a manifest is the same."""
    assert decode(encode(MANIFEST), WHERE) == MANIFEST
    assert MANIFEST.size_bytes == 3


def test_each_changed_byte_of_a_manifest_is_noticed() -> None:
    """A manifest with any byte changed, or cut anywhere, is refused or still the same; the error names the file."""
    data = encode(MANIFEST)
    for at in range(len(data) - 1):
        for spoiled in (data[:at], data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]):
            try:
                assert decode(spoiled, WHERE) == MANIFEST
            except (Corruption, LocalFault) as error:
                assert "backup.json" in str(error)  # noqa: PT017


def test_a_manifest_of_another_version_is_refused() -> None:
    """A manifest of a later version is not reported as damage, and the error names both versions."""
    data = encode(msgspec.structs.replace(MANIFEST, version=VERSION + 1))
    with pytest.raises(LocalFault, match=f"version {VERSION + 1}, this program reads {VERSION}") as caught:
        decode(data, WHERE)
    assert not isinstance(caught.value, Corruption)


@pytest.mark.parametrize("path", ["/etc/passwd", "../identity.0", "log/../../x", "", "./log", "log//a"])
def test_a_path_outside_of_the_backup_is_refused(path: str) -> None:
    """A manifest with a right hash cannot make a restoration write elsewhere."""
    data = encode(msgspec.structs.replace(MANIFEST, files=[BackupFile(path, 0, "")]))
    with pytest.raises(Corruption, match="is not a path below the backup"):
        decode(data, WHERE)


def test_a_manifest_without_a_field_is_refused() -> None:
    """A manifest with a right hash and a wrong shape is damage, and the error names the field."""
    body = {"version": VERSION}
    digest = xxh64_hexdigest(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())
    with pytest.raises(Corruption, match="program"):
        decode(json.dumps({"manifest": body, "xxh64": digest}).encode(), WHERE)


def test_a_directory_without_a_manifest_is_no_backup(tmp_path: Path) -> None:
    """An incomplete backup and any other directory are refused, each with its reason."""
    (tmp_path / "b.incomplete").mkdir()
    with pytest.raises(BadInput, match="it was not completed"):
        load(tmp_path / "b.incomplete")
    with pytest.raises(BadInput, match=f"it has no {NAME}"):
        load(tmp_path)


def test_a_file_is_hashed_in_pieces(tmp_path: Path) -> None:
    """The hash of a file larger than a chunk is that of all its bytes, and the bytes are reported."""
    data = bytes(range(256)) * 10_000
    (tmp_path / "f").write_bytes(data)
    passed: list[int] = []
    assert hash_file(tmp_path / "f", passed.append) == (len(data), xxh64_hexdigest(data))
    assert sum(passed) == len(data)
    assert len(passed) > 1
