"""Saved trees whose checksum is right and whose content is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import pytest
from xxhash import xxh64_digest

from isthmus.aae.trees.tree_files import _MAGIC, load_and_remove_tree


@pytest.mark.parametrize("branches", [{0: 5}, {"x": b""}, {0: b"short"}, {0: None}])
def test_a_tree_of_anything_but_branches_is_not_used(tmp_path: Path, branches: dict[Any, Any]) -> None:
    """The tree is built again from the rows, and the file is gone."""
    data = _MAGIC + msgpack.packb([3, 1, 9, branches])
    (tmp_path / "3.tree").write_bytes(data + xxh64_digest(data))
    assert load_and_remove_tree(tmp_path, 3, 1, 9) is None
    assert list(tmp_path.iterdir()) == []


def test_a_map_with_a_map_as_key_is_not_used(tmp_path: Path) -> None:
    """Msgpack has such maps, Python has not."""
    data = _MAGIC + b"\x81\x80\x01"
    (tmp_path / "3.tree").write_bytes(data + xxh64_digest(data))
    assert load_and_remove_tree(tmp_path, 3, 1, 9) is None
