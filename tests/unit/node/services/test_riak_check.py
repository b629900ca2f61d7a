"""What of a Riak's settings does not fit, and what to do about it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from isthmus.node.services.riak_check import NOT_BY_HTTP, judged, look
from isthmus.repl.http.client import OPEN
from isthmus.repl.model.keys import Key
from tests.support.fake_riak import FakeRiak
from tests.support.riak_pair import value


@pytest.fixture
def riak() -> Iterator[FakeRiak]:
    """A Riak that fits."""
    made = FakeRiak()
    made.props[b"default"] = {"allow_mult": True, "dvv_enabled": True}
    yield made
    made.close()


def checks(riak: FakeRiak, *urls: str, here: dict[bytes, bool] | None = None, named: tuple[bytes, ...] = ()) -> Any:
    """What is checked -> (state, what was found, what would be right)."""
    types = {b"default": True} if here is None else here
    found = look([riak.url, *urls], "isthmus", OPEN, list(types), named)
    return {row["what"]: (row["state"], row["found"], row["right"]) for row in judged("isthmus", found, types, named)}


def states(rows: Any) -> dict[str, str]:
    return {what: state for what, (state, _, _) in rows.items() if state != "ok"}


def test_a_riak_that_fits(riak: FakeRiak) -> None:
    """All is ok, but that nothing is protected, and that delete_mode cannot be seen."""
    riak.put(Key(b"default", b"b", b"k"), value(b"v"))
    rows = checks(riak)
    assert states(rows) == {"tls": "warn", NOT_BY_HTTP: "unknown"}
    assert "1 changes wait" in rows["queue"][1]
    assert "delete_mode = keep" in rows[NOT_BY_HTTP][2]
    assert riak.taken == 0


def test_what_does_not_fit_is_named_with_the_remedy(riak: FakeRiak) -> None:
    """An old version, no queue, nodes that are not named, types that are missing here, siblings without dots, and
    allow_mult that differs."""
    riak.version, riak.queue_name = "2.2.3", "other"
    riak.nodes = [("10.0.0.9", 8098)]
    riak.props |= {b"orders": {"allow_mult": True, "dvv_enabled": False}, b"maps": {"datatype": "map"}}
    riak.put(Key(b"orders", b"b", b"k"), value(b"v"))
    rows = checks(riak, here={b"default": False, b"maps": True, b"only-here": True})
    assert states(rows) == {
        "tls": "warn",
        "version": "fail",
        "queue": "fail",
        "nodes": "fail",
        "bucket types": "fail",
        "type default": "warn",
        "type maps": "warn",
        "type orders": "fail",
        NOT_BY_HTTP: "unknown",
    }
    assert "isthmus riak seed NAME --by-keys" in rows["version"][2]
    assert "replrtq_srcqueue = isthmus:any" in rows["queue"][2]
    assert "10.0.0.9:8098" in rows["nodes"][1]
    assert "bucket-type create orders" in rows["bucket types"][2]
    assert "dvv_enabled" in rows["type orders"][2]
    assert "isthmus bucket-type set default allow_mult=true" in rows["type default"][2]
    assert rows["type only-here"] == ("ok", "the Riak has no such type", "")


def test_types_that_are_not_taken_are_not_judged(riak: FakeRiak) -> None:
    """With bucket types named."""
    riak.props |= {b"orders": {"allow_mult": True, "dvv_enabled": False}}
    riak.put(Key(b"orders", b"b", b"k"), value(b"v"))
    assert states(checks(riak, named=(b"default",))) == {"tls": "warn", NOT_BY_HTTP: "unknown"}


def test_a_riak_that_does_not_answer_or_refuses(riak: FakeRiak) -> None:
    """Nothing is known but that; a wrong password names the options; one node of two that is silent fails."""
    riak.user = "u"
    rows = checks(riak)
    assert rows["reach"][0] == "fail"
    assert "--peer-user" in rows["reach"][2]
    assert rows["version"][0] == "unknown"
    riak.user = ""
    rows = checks(riak, "http://127.0.0.1:1")
    assert rows["reach"][0] == "fail"
    assert rows["version"] == ("ok", "3.4.0", "")
    assert rows["queue"][0] == "unknown"


async def test_an_old_riak_has_neither_queues_nor_folds(riak: FakeRiak) -> None:
    """It fails for its version and queue; its types are unknown."""
    riak.version, riak.has_folds = "2.2.3", False
    rows = await asyncio.to_thread(checks, riak)
    assert (rows["version"][0], rows["queue"][0], rows["bucket types"][0]) == ("fail", "fail", "unknown")
