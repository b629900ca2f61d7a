"""Lines of keys in TOML texts: every way to write a key, checked against texts built with known lines."""

from __future__ import annotations

import textwrap
import tomllib
from typing import Any

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from isthmus.config.toml_lines import KeyPath, line_of_keys


def test_each_way_to_write_a_key_is_found() -> None:
    """Plain, dotted, quoted keys, arrays of tables, inline tables and multi-line values all have their line."""
    text = textwrap.dedent(
        '''\
        # a comment with [brackets] and = signs
        top = 1
        a.b."c.d" = """one
        [not.a.header]
        four""""
        [node] # header
        name = 'x # not a comment'
        [[queues]]
        name = "first"
        [queues.extra]
        deep = true
        [[queues]]

        "na\\u006de" = "second"
        [sink]
        peers = [ # comment ]
          { url = "u", queue = "q" }, { url = "v",  queue = "]}" },
          { queue.name = "w" },
        ]
        last = 1979-05-27 07:32:00
        '''
    )
    lines = line_of_keys(text)
    expected: dict[KeyPath, int] = {
        ("top",): 2,
        ("a", "b", "c.d"): 3,
        ("node",): 6,
        ("node", "name"): 7,
        ("queues",): 8,
        ("queues", 0): 8,
        ("queues", 0, "name"): 9,
        ("queues", 0, "extra"): 10,
        ("queues", 0, "extra", "deep"): 11,
        ("queues", 1): 12,
        ("queues", 1, "name"): 14,
        ("sink", "peers"): 16,
        ("sink", "peers", 0, "url"): 17,
        ("sink", "peers", 1, "queue"): 17,
        ("sink", "peers", 2): 18,
        ("sink", "peers", 2, "queue", "name"): 18,
        ("sink", "last"): 20,
    }
    assert {path: lines.get(path) for path in expected} == expected


NAMES = st.sampled_from(["a", "b-1", '"q.u"', "'l'", '"\\""'])
SCALARS = st.sampled_from(
    ["1", "true", "1.5", '"s#]"', "'l\\'", '"\\"="', '"""m\n=[\n"q" \\"""" """', "'''\n[x]\n'''", '""', "2020-01-01"]
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: "[ # c ]\n" + ",\n".join(items) + "\n]"),
        st.lists(inner, max_size=2).map(
            lambda items: "{" + ", ".join(f"k{number}.x = {item}" for number, item in enumerate(items)) + "}"
        ),
    ),
    max_leaves=5,
)


@st.composite
def documents(draw: st.DrawFn) -> str:
    """TOML texts of tables, arrays of tables and all kinds of values; some are not valid."""
    parts = []
    for number in range(draw(st.integers(1, 4))):
        parts += draw(st.lists(st.sampled_from(["", "# [c] = 'x"]), max_size=2))
        header = draw(st.sampled_from([f"[t{number}]", f"[t{number}.in]", "[[list]]", "[[ t0 . list ]]", "[list.sub]"]))
        parts.append(header)
        for index in range(draw(st.integers(0, 3))):
            parts.append(f"k{index}.{draw(NAMES)} = {draw(VALUES)}  # c")
    return "\n".join(parts) + "\n"


@given(documents())
def test_the_scan_finds_exactly_the_keys_that_the_parser_finds(text: str) -> None:
    """Every key of the parsed text has a line, the line holds the key's name, and no other key is invented."""
    try:
        parsed = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        reject()
    lines = line_of_keys(text)
    assert set(lines) == set(_paths(parsed, ()))
    rows = text.split("\n")
    for path, line in lines.items():
        name = path[-1]
        if isinstance(name, str) and name.startswith(("k", "t", "list")):
            assert name in rows[line - 1]


def _paths(value: Any, path: KeyPath) -> list[KeyPath]:
    if isinstance(value, dict):
        children = [(*path, name) for name in value]
    elif isinstance(value, list):
        children = [(*path, number) for number in range(len(value))]
    else:
        return []
    items = list(value.values()) if isinstance(value, dict) else value
    found = list(children)
    for child, item in zip(children, items, strict=True):
        found += _paths(item, child)
    return found


def test_a_table_has_the_line_of_its_first_mention() -> None:
    """Dotted keys that go on with a table, and headers below it, do not move the line where it began."""
    lines = line_of_keys("[t]\na.b = 1\na.c = 2\n[t.d]\n[u]\n[t.e]\n")
    assert (lines["t",], lines["t", "a"], lines["t", "a", "c"]) == (1, 2, 3)


@pytest.mark.parametrize("ending", ["", "\n", "\n\n# end"])
def test_a_text_may_end_anywhere(ending: str) -> None:
    """A last line without a line end, or a comment at the very end, is read like any other."""
    assert line_of_keys(f"a = 1\nb = 2{ending}") == {("a",): 1, ("b",): 2}
