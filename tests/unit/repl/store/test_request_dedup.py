"""The window of remembered requests, tested in isolation (H40)."""

from __future__ import annotations

from isthmus.repl.store.request_dedup import RequestWindow, RequestWindows, request_name


def test_a_name_that_came_twice_is_known_by_its_newer_offset() -> None:
    """Forgetting the older of two offsets of a request leaves the newer one known."""
    window = RequestWindow()
    window.add(3, b"a")
    window.add(5, b"b")
    window.add(9, b"a")
    assert window.trim(4) == [3]
    assert (window.offset_of(b"a"), window.offset_of(b"b")) == (9, 5)
    assert window.trim(4) == []
    assert window.trim(10) == [5, 9]
    assert window.offset_of(b"a") is None


def test_keys_of_the_index_keep_hash_and_request_id_apart() -> None:
    """Two requests share a name only when both their key hashes and their ids are the same."""
    names = {request_name(h, i) for h in (0, 1, 0x61, 1 << 63) for i in (b"", b"a", b"aa")}
    assert len(names) == 12
    windows = RequestWindows()
    windows.of(1).add(0, request_name(7, b"id"))
    assert windows.offset_of(1, 7, b"id") == 0
    assert windows.offset_of(1, 7, b"i") is None
    assert windows.offset_of(2, 7, b"id") is None
