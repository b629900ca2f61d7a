"""[[riak.trees]]: bucket types by their n_val; every wrong value is named with what would be right."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.config.loader import ConfigError, load_file
from isthmus.config.settings import RiakTreeSettings, Settings

BASE = """
[node]
name = "n1"
cluster = "east"
data_dir = "data"
"""


def loaded(tmp_path: Path, *tables: str) -> Settings:
    """The settings of a file with these tables."""
    file = tmp_path / "n1.toml"
    file.write_text(BASE + "".join(f"[[riak.trees]]\n{table}\n" for table in tables))
    return load_file(file)


def test_a_tree_has_an_n_val_and_bucket_types(tmp_path: Path) -> None:
    """Several have different ones; without any, nothing is kept for a Riak."""
    assert loaded(tmp_path).riak.trees == ()
    found = loaded(tmp_path, 'n_val = 3\nbucket_types = "default, maps"', 'n_val = 1\nbucket_types = "logs"')
    assert found.riak.trees == (RiakTreeSettings(3, "default,maps"), RiakTreeSettings(1, "logs"))


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (["n_val = 3"], "bucket_types: missing"),
        (['bucket_types = "*"'], "n_val: missing"),
        (['n_val = 0\nbucket_types = "*"'], "allowed is 1 to 64"),
        (['n_val = 3\nbucket_types = "a,a"'], "each of 1 to 256 bucket types once"),
        (['n_val = 3\nbucket_types = "a"', 'n_val = 3\nbucket_types = "b"'], "n_val 3 is there twice"),
        (['n_val = 3\nbucket_types = "a,b"', 'n_val = 2\nbucket_types = "c,b"'], "b is in two trees"),
        (['n_val = 3\nbucket_types = "a"', 'n_val = 2\nbucket_types = "*"'], r"\* is in two trees"),
        (['n_val = 3\nbucket_types = "*"', 'n_val = 2\nbucket_types = "a"'], "a is in two trees"),
    ],
)
def test_each_fault_is_named(tmp_path: Path, tables: list[str], message: str) -> None:
    """One fault, at its key, with a sentence."""
    with pytest.raises(ConfigError, match=message):
        loaded(tmp_path, *tables)
