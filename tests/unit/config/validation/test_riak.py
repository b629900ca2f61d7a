"""[[riak.peers]]: every wrong value is named with what would be right."""

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

[listen]
http = "127.0.0.1:8098"

[[sink.peers]]
url = "http://10.0.0.1:8098"
queue = "to-east"

[[riak.peers]]
name = "old"
urls = "http://10.0.0.7:8098, http://10.0.0.8:8098/"
queue = "isthmus"
"""


def test_a_riak_needs_a_name_urls_and_a_queue(tmp_path: Path) -> None:
    """The least that is needed; the rest has defaults, and urls are tidied."""
    file = tmp_path / "n1.toml"
    file.write_text(BASE)
    settings = load_file(file)
    (peer,) = settings.riak.peers
    assert peer.urls == "http://10.0.0.7:8098,http://10.0.0.8:8098"
    assert (peer.bucket_types, peer.workers, peer.user, peer.password_file) == ("*", 0, "", None)
    assert list(warnings_of(settings)) == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('urls = "10.0.0.7"', "not the URL of a node"),
        ('urls = "http://127.0.0.1:8098"', "this node itself"),
        ('urls = "http://a:1"\n[[riak.peers]]\nname = "b"\nurls = "http://a:1"\nqueue = "isthmus"', "listed already"),
        ('name = "old"\n[[riak.peers]]\nname = "old"\nurls = "http://a:1"\nqueue = "q"', "two Riaks are called"),
        ('urls = "http://10.0.0.1:8098"\n[[riak.peers]]\nname = "b"\nurls = "http://a:1"\nqueue = "to east"', "name"),
        ('bucket_types = "a,a"', "each of 1 to 256 bucket types once"),
        ('user = "a:b"', "without a colon"),
        ('user = "a"', "set password_file, too"),
        ('password_file = "p"', "set user, too"),
        ("workers = 999", "allowed is 0 to 256"),
        ('password = "x"', "password_file"),
    ],
)
def test_each_fault_is_named(tmp_path: Path, line: str, message: str) -> None:
    """One fault, at its key, with a sentence."""
    key = line.partition(" ")[0]
    head, peer = BASE.split("[[riak.peers]]")
    kept = [row for row in peer.splitlines() if not row.startswith(key + " ")]
    file = tmp_path / "n1.toml"
    file.write_text("\n".join([head, "[[riak.peers]]", *kept, line]))
    with pytest.raises(ConfigError, match=message):
        load_file(file)


def test_a_link_of_the_sink_is_no_riak_as_well(tmp_path: Path) -> None:
    """The queue at a URL is one link."""
    file = tmp_path / "n1.toml"
    file.write_text(BASE.replace("http://10.0.0.7:8098", "http://10.0.0.1:8098").replace("isthmus", "to-east"))
    with pytest.raises(ConfigError, match=r"listed already in sink\.peers"):
        load_file(file)


def test_a_password_in_the_clear_is_a_warning(tmp_path: Path) -> None:
    """Over http:// to another machine."""
    file = tmp_path / "n1.toml"
    file.write_text(BASE + 'user = "u"\npassword_file = "p"\n')
    assert [path for path, _ in warnings_of(load_file(file))] == ["riak.peers[0].urls"]
