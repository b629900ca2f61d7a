"""[[fullsync]]: every wrong value is named with what would be right."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.config.loader import ConfigError, load_file
from isthmus.config.warnings import warnings_of

BASE = """
[node]
name = "n1"
cluster = "east"
data_dir = "data"

[[queues]]
name = "to-west"

[[fullsync]]
name = "west"
urls = "http://10.0.0.7:8098, http://10.0.0.8:8098/"
queue = "to-west"
"""


def test_a_full_sync_needs_a_name_urls_and_a_queue(tmp_path: Path) -> None:
    """The least that is needed; the rest has defaults, and urls are tidied."""
    file = tmp_path / "n1.toml"
    file.write_text(BASE)
    (peer,) = load_file(file).fullsync
    assert peer.urls == "http://10.0.0.7:8098,http://10.0.0.8:8098"
    assert (peer.auto_count, peer.all_count, peer.bidirectional) == (24, 0, False)
    assert peer.bucket_types == "*", "all, those made later included"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('urls = "10.0.0.7"', "not the URL of a node"),
        ('urls = "http://a:1,http://a:1"', "once"),
        ('bucket_types = "a,a"', "each of 1 to 256 bucket types once"),
        ('bucket_types = "a b"', "is not a name"),
        ('bucket_types = "*,a"', "is not a name"),
        ('all_window = "25-3"', '"22-6"'),
        ("all = 500", "allowed is 0 to 240"),
        ("bidirectional = true", "set peer_queue"),
        ('pause = "2h"', "allowed is 0s to 1m"),
        ("alll = 3", "all"),
    ],
)
def test_each_fault_is_named(tmp_path: Path, line: str, message: str) -> None:
    """One fault, at its key, with a sentence."""
    key = line.partition(" ")[0]
    kept = [row for row in BASE.splitlines() if not row.startswith(key + " ")]
    file = tmp_path / "n1.toml"
    file.write_text("\n".join([*kept, line]))
    with pytest.raises(ConfigError, match=message):
        load_file(file)


def test_a_queue_that_is_registered_later_may_be_named(tmp_path: Path) -> None:
    """The file loads even if it has queues of its own and this one is not among them; that gives a warning, not a
    fault."""
    file = tmp_path / "n1.toml"
    file.write_text(BASE.replace('queue = "to-west"\n', 'queue = "later"\n'))
    settings = load_file(file)
    assert settings.queues
    (doubt,) = (one for one in warnings_of(settings) if one.path == "fullsync[0].queue")
    assert '"later" is not a queue of this file; there are: to-west' in doubt.message
    file.write_text(BASE)
    assert not [one for one in warnings_of(load_file(file)) if one.path == "fullsync[0].queue"]


def test_one_queue_for_two_clusters_is_doubted(tmp_path: Path) -> None:
    """It belongs to one of them, to which the repairs of both would go; several entries for one cluster share it."""
    file = tmp_path / "n1.toml"
    entry = BASE[BASE.index("[[fullsync]]") :]
    named = BASE.replace("[[fullsync]]", '[[fullsync]]\ncluster = "west"')
    for cluster, doubted in (("west", 0), ("north", 1)):
        again = entry.replace('name = "west"', 'name = "again"').replace(
            "[[fullsync]]", f'[[fullsync]]\ncluster = "{cluster}"'
        )
        file.write_text(f"{named}\n{again}")
        found = [one for one in warnings_of(load_file(file)) if one.path == "fullsync[1].queue"]
        assert len(found) == doubted
    assert "compares with west, not north: a queue belongs to one cluster" in found[0].message


def test_two_of_one_name_are_one_too_many(tmp_path: Path) -> None:
    """Both places are named."""
    file = tmp_path / "n1.toml"
    file.write_text(BASE + BASE[BASE.index("[[fullsync]]") :])
    with pytest.raises(ConfigError, match='two full-syncs are called "west"'):
        load_file(file)
