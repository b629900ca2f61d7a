"""Any text is either a configuration or a list of faults, each with what would be right."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.config.loader import ConfigError, load_text
from tests.support.samples import share

SAMPLE = """\
[node]
name = "n1"
cluster = "east"
data_dir = "data"
[listen]
http = "127.0.0.1:8098"
[metastore]
hosts = "zk1:2181"
[replication]
factor = 3
[limits]
object_size = "50MB"
[[queues]]
name = "to-west"
"""

EXAMPLES = settings(max_examples=share(150), deadline=None, derandomize=True)


def check_text(text: str) -> None:
    """Load `text`; its faults are sentences."""
    faults = ["sound"]
    try:
        load_text(text, Path("/nowhere/node.toml"))
    except ConfigError as error:
        faults = error.sentences()
    assert faults
    assert all(fault.strip() for fault in faults)


def test_the_sample_is_sound() -> None:
    """The text that the tests below mutate is a valid configuration."""
    load_text(SAMPLE, Path("/nowhere/node.toml"))


@EXAMPLES
@given(st.text(max_size=60))
def test_any_text_is_check_text(text: str) -> None:
    """Text of any kind is loaded or refused with sentences."""
    check_text(text)


@EXAMPLES
@given(st.integers(0, len(SAMPLE)), st.integers(0, 12), st.text('[]"=.,{}\n 019-amMBTrue\x00é', max_size=8))
def test_a_damaged_sample_is_check_text(place: int, length: int, instead: str) -> None:
    """A piece of a sound file replaced by anything else is loaded or refused with sentences."""
    check_text(SAMPLE[:place] + instead + SAMPLE[place + length :])


@EXAMPLES
@given(
    st.sampled_from(["node.name", "listen.http", "replication.factor", "limits.object_size", "queues", "metastore"]),
    st.sampled_from(
        ['""', "0", "-1", "1e999", "nan", "9223372036854775808", "[]", "{}", "true", '"\\u0000"', "1979-05-27"]
    ),
)
def test_a_value_of_another_kind_is_check_text(key: str, value: str) -> None:
    """Each kind of TOML value in each kind of place is loaded or refused with sentences."""
    check_text(f"{key} = {value}\n")
