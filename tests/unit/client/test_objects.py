"""Objects, siblings and contexts as callers see them."""

from __future__ import annotations

import inspect
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from isthmus.client.errors import BadRequest
from isthmus.client.objects import Context, NotFound, Sibling, Siblings, StoredObject, Written, context_of, newest

DAY = datetime(2026, 1, 1, tzinfo=UTC)
KEY = (b"default", b"b", b"k")


def sibling(body: bytes, days: int = 0, **more: Any) -> Sibling:
    """A version as JSON."""
    return Sibling(body, "application/json", f"v{days}", DAY + timedelta(days=days), **more)


def stored(*siblings: Sibling, **more: Any) -> StoredObject:
    """An object with these versions."""
    return StoredObject("default", "b", "k", Context(b"c"), "tag", siblings, **more)


def test_an_object_with_one_version_has_its_value() -> None:
    """It also has content type, metadata, time, and bytes."""
    found = stored(sibling(b'{"a":1}', metadata={"x": "y"}))
    assert (found.value, found.body, found.content_type) == ({"a": 1}, b'{"a":1}', "application/json")
    assert (found.metadata, found.last_modified, found.in_conflict) == ({"x": "y"}, DAY, False)


def test_an_object_with_siblings_wants_a_resolver() -> None:
    """Without one, each attribute of a single version raises; the error has the siblings and the object."""
    found = stored(sibling(b"1"), sibling(b"2", 1))
    assert found.in_conflict
    for name in ("value", "body", "content", "content_type", "metadata"):
        with pytest.raises(Siblings, match="b/k has 2 concurrent versions") as caught:
            getattr(found, name)
        assert caught.value.object is found
    assert found.last_modified == DAY + timedelta(days=1)


def test_a_resolver_chooses_or_merges() -> None:
    """It may return one of the siblings, or a new value."""
    pair = (sibling(b"1"), sibling(b"2", 1))
    assert stored(*pair, resolver=newest).value == 2
    assert stored(*pair, resolver=lambda found: sum(each.value for each in found)).value == 3


def test_a_resolver_that_is_a_coroutine_function_is_a_mistake() -> None:
    """A property cannot await it; the coroutine is closed, so that Python does not warn of it."""
    made: list[Any] = []

    async def resolve() -> int:
        return 1

    def resolver(_: Any) -> Any:
        made.append(resolve())
        return made[-1]

    with pytest.raises(BadRequest, match="resolver is a coroutine function") as caught:
        _ = stored(sibling(b"1"), sibling(b"2"), resolver=resolver).value
    assert caught.value.reason == "bad-call"
    assert inspect.getcoroutinestate(made[0]) == inspect.CORO_CLOSED


def test_newest_prefers_values_to_deletions() -> None:
    """It chooses the latest value, however late the deletion is; a deletion only if there is nothing else."""
    gone = sibling(b"", 9, deleted=True)
    assert newest([sibling(b"1"), gone, sibling(b"2", 1)]).value == 2
    assert newest([gone]).value is None
    assert newest([sibling(b"1"), sibling(b"2")]).value == 2


def test_an_encoded_value_stays_bytes() -> None:
    """The client does not undo a content encoding."""
    assert sibling(b"\x1f\x8b", content_encoding="gzip").value == b"\x1f\x8b"


def test_a_context_survives_as_text() -> None:
    """A context can be kept as text, in a form for example; any other text is refused."""
    context = Context(b"\x00\xff")
    assert Context.from_text(str(context)) == context
    assert eval_free(repr(context)) == context
    with pytest.raises(BadRequest):
        Context.from_text("?")


def eval_free(text: str) -> Context:
    """The context in a repr."""
    return Context.from_text(text.partition("'")[2].partition("'")[0])


def test_a_context_comes_from_all_that_has_one() -> None:
    """An object, the result of a write, and a NotFound have one; any other value is refused."""
    context = Context(b"c")
    for given in (context, stored(), Written("default", "b", "k", context, False), NotFound("no", context=context)):
        assert context_of(given, KEY) == context
    assert context_of(None, KEY) is None
    with pytest.raises(BadRequest, match="context is a str"):
        context_of("c", KEY)  # type: ignore[arg-type]


@pytest.mark.parametrize("key", [(b"t", b"b", b"k"), (b"default", b"other", b"k"), (b"default", b"b", b"\xff")])
def test_a_context_of_another_key_is_refused(key: tuple[bytes, bytes, bytes]) -> None:
    """What names its key counts for that key alone, in its bucket and type; a bare context names none."""
    context, names = Context(b"c"), ("default", "b", "k")
    for given in (stored(), Written(*names, context, False), NotFound("no", context=context, names=names)):
        with pytest.raises(BadRequest, match="of another key, default/b/k: pass"):
            context_of(given, key)
    assert context_of(context, key) == context
    theirs = tuple(name.decode("utf-8", "surrogateescape") for name in key)
    with pytest.raises(BadRequest) as caught:
        context_of(Written("\udcff\n", "b", "k", context, False), key)
    assert str(caught.value).isprintable()
    assert context_of(Written(*theirs, context, False), key) == context


def test_names_in_messages_are_printable_and_short() -> None:
    """Messages that name keys of any bytes are printable and short, so logs and terminals can show them."""
    for key in ("\udcff\n\x1b", "k" * 5_000):
        message = str(Siblings(StoredObject("default", "b", key, Context(b"c"), "", (sibling(b"1"), sibling(b"2")))))
        assert message.isprintable()
        assert message.encode()
        assert len(message) < 400


def test_a_repr_shows_no_value() -> None:
    """A value may be large, or confidential."""
    assert "secret" not in repr(stored(sibling(b'"secret"')))
