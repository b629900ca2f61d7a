"""The generated history is the same for the same seed, and its model is the state that its operations leave."""

from __future__ import annotations

import pytest

from isthmus.node.demo.history import SHA1_HEX, VALUE_BYTES_MAX, VALUE_BYTES_MIN, MadeHistory, blob_id


@pytest.mark.parametrize("seed", [0, 7, 123456789])
def test_the_model_is_what_the_operations_leave(seed: int) -> None:
    """Replaying the operations gives the expected keys, values, sizes and deleted keys."""
    history = MadeHistory(seed, 3000)
    state: dict[bytes, bytes] = {}
    ever = set()
    for key, token in history.operations:
        ever.add(key)
        if token is None:
            del state[key]
        else:
            state[key] = history.value(token)
    end = history.expectation()
    assert {key: blob_id(value, SHA1_HEX) for key, value in state.items()} == end.live
    assert {key: len(value) for key, value in state.items()} == end.sizes
    assert end.gone == ever - state.keys()


def test_the_same_seed_makes_the_same_history_and_another_makes_another() -> None:
    """Two runs of a seed agree in every operation and value; a different seed differs."""
    one, again, other = MadeHistory(5, 500), MadeHistory(5, 500), MadeHistory(6, 500)
    operations = one.operations
    assert operations == one.operations == again.operations
    assert operations != other.operations
    tokens = [token for _, token in operations if token is not None]
    assert [one.value(t) for t in tokens] == [again.value(t) for t in tokens]
    assert one.value(tokens[0]) != other.value(tokens[0])


def test_the_made_history_has_what_a_demo_should_meet() -> None:
    """It has deletes, adds after deletes, hot keys, keys that need encoding, and sizes of the whole range."""
    history = MadeHistory(1, 20_000)
    assert len(history.operations) == 20_000
    deleted: set[bytes] = set()
    again = 0
    changes: dict[bytes, int] = {}
    for key, token in history.operations:
        changes[key] = changes.get(key, 0) + 1
        if token is None:
            deleted.add(key)
        elif key in deleted:
            deleted.discard(key)
            again += 1
    assert again > 1000
    assert deleted
    assert max(changes.values()) > 20 * sum(changes.values()) / len(changes)
    assert any(b"\n" in key for key in changes)
    assert any(b"\xff" in key for key in changes)
    sizes = history.expectation().sizes.values()
    assert min(sizes) < 10 * VALUE_BYTES_MIN
    assert max(sizes) > VALUE_BYTES_MAX / 10
    assert all(VALUE_BYTES_MIN <= size <= VALUE_BYTES_MAX for size in sizes)
