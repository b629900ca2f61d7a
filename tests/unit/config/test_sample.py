"""Config files as text, from the definitions of the settings."""

from __future__ import annotations

import re
from pathlib import Path

from isthmus.config.loader import effective, load_text
from isthmus.config.sample import sample_text
from isthmus.config.schema import sections_of, settings_of
from isthmus.config.settings import Settings

NODE = {"node.name": "n", "node.cluster": "c", "node.data_dir": "d"}
FILE = Path("/x/node.toml")


def test_a_sample_has_every_section_and_key_and_loads() -> None:
    """Each key has its description; only the given values are active."""
    text = sample_text(NODE, every=True)
    settings = load_text(text, FILE)
    assert [one.path for one in effective(settings) if one.origin != "default"] == list(NODE)
    for section in sections_of(Settings):
        assert f"[{section.name}]" in text or not settings_of(section.kind)
        for name in settings_of(section.kind):
            assert re.search(rf"^(# )?{name} = ", text, re.MULTILINE), (section.name, name)
    assert max(map(len, text.splitlines())) <= 120


def test_its_defaults_may_be_taken_as_they_stand() -> None:
    """Without the leading "# " they are valid, and equal the values that were in effect before."""
    text = sample_text(NODE, every=True)
    taken = re.sub(r"^# ([a-z_]+ = (?!\.\.\.))", r"\1", text.partition("# [[")[0], flags=re.MULTILINE)
    before, after = (load_text(each, FILE) for each in (text, taken))
    assert [one[:2] for one in effective(before)] == [one[:2] for one in effective(after)]
    assert sum(one.origin != "default" for one in effective(after)) > 30


def test_a_short_sample_has_what_is_set_alone() -> None:
    """With tables of queues and peers, whose names may hold anything."""
    values = {**NODE, "queues": [{"name": "to-west"}, {"name": "audit"}],
              "sink.peers": [{"url": "http://h:1", "queue": "q"}]}  # fmt: skip
    text = sample_text(values, every=False)
    settings = load_text(text, FILE)
    assert [queue.name for queue in settings.queues] == ["to-west", "audit"]
    assert settings.sink.peers[0].url == "http://h:1"
    assert not re.search(r"^# [a-z_]+ =", text, re.MULTILINE)
    assert "[log]" not in text
