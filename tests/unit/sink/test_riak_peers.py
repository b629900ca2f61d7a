"""The document of Riaks that operators set, and how it goes with those of the file."""

from __future__ import annotations

import pytest

from isthmus.config.settings import RiakPeerSettings
from isthmus.repl.model.errors import BadInput, CodecError
from isthmus.sink.riak_peers import (
    DOCUMENT,
    ENTRIES_MAX,
    RiakPeerEntry,
    RiakPeers,
    checked,
    decode,
    links_of,
    peers_in_effect,
    with_entry,
)

A = RiakPeerSettings("a", "http://r1:8098,http://r2:8098", "isthmus")


def entry(name: str = "b", **more: object) -> RiakPeerEntry:
    values = {"urls": "http://r3:8098", "queue": "isthmus", **more}
    return RiakPeerEntry(name=name, **values)  # type: ignore[arg-type]


def test_an_entry_overrides_the_peer_of_its_name_in_the_file() -> None:
    """A removed one is not fetched from, an added one is, and each node of it is a link."""
    assert peers_in_effect([A], RiakPeers()) == [(A, None)]
    removed = RiakPeerEntry(name="a", removed=True)
    assert peers_in_effect([A], RiakPeers((removed,))) == []
    other = entry("a", urls="http://r9:8098")
    assert peers_in_effect([A], RiakPeers((other,))) == [(other.settings(), other)]
    assert [tuple(name) for name in links_of(A)] == [("isthmus", "http://r1:8098"), ("isthmus", "http://r2:8098")]


def test_a_removal_leaves_an_entry_only_where_a_file_lists_the_peer() -> None:
    """Otherwise nothing is left to override; and there is a limit."""
    found = with_entry(RiakPeers(), entry(), in_file=False)
    gone = RiakPeerEntry(name="b", removed=True)
    assert with_entry(found, gone, in_file=False) == RiakPeers()
    assert with_entry(found, gone, in_file=True) == RiakPeers((gone,))
    full = RiakPeers(tuple(entry(f"n{number}") for number in range(ENTRIES_MAX)))
    with pytest.raises(BadInput, match=str(ENTRIES_MAX)):
        with_entry(full, entry("one-more"), in_file=False)


def test_the_document_is_read_back_and_a_wrong_one_is_refused() -> None:
    """Values have the forms of the config file, so that nothing unusable comes out of the metastore."""
    peers = RiakPeers((entry(user="u", password_file="/secret/p"), RiakPeerEntry(name="a", removed=True)))
    assert decode(DOCUMENT.encode(peers)) == peers
    for wrong in (b"{", b'{"peers":[{"name":"../x"}]}', b'{"peers":[{"name":"b","urls":"ftp://x","queue":"q"}]}'):
        with pytest.raises(CodecError):
            decode(wrong)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"urls": "http://r3"}, "HOST:PORT"),
        ({"urls": "http://r3:8098,http://r3:8098"}, "once"),
        ({"queue": "a b"}, "name"),
        ({"user": "u"}, "belong together"),
        ({"password_file": "/secret/p"}, "belong together"),
        ({"user": "a:b", "password_file": "/secret/p"}, "colon"),
        ({"bucket_types": "a,,b"}, "name"),
    ],
)
def test_an_entry_with_a_wrong_value_is_refused_with_what_is_right(changed: dict[str, object], why: str) -> None:
    """As in a config file."""
    with pytest.raises(ValueError, match=why):
        checked(entry(**changed))
