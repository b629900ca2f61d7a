"""Digests of properties by scope, by which two clusters find out which of their properties differ."""

from __future__ import annotations

import pytest

from isthmus.config.bucket_properties import Value
from isthmus.repl.controller.bucket_properties import (
    OWN_BUCKETS_MAX,
    PropertyScope,
    PropertySettings,
    _digests,
    scope_digests,
)
from isthmus.repl.controller.stored_setting import Setting
from isthmus.repl.property_digests import (
    MUST_AGREE,
    NAMED_MAX,
    PLAIN_SCOPE,
    SCOPES_BYTES_MAX,
    SCOPES_MAX,
    VALUE_BYTES,
    PropertyDifference,
    differences,
    differences_shown,
    merged,
    scope_digest,
    types_of,
)

ORDERS = PropertyScope("default", b"orders")


def settings_of(scopes: dict[PropertyScope, dict[str, Value]]) -> PropertySettings:
    return PropertySettings({
        scope: {name: Setting(value, "ann", 1) for name, value in values.items()}
        for scope, values in scopes.items()
    })  # fmt: skip


def between(
    ours: dict[PropertyScope, dict[str, Value]], theirs: dict[PropertyScope, dict[str, Value]]
) -> tuple[object, ...]:
    """The differences, which must be the same from both sides."""
    a, b = settings_of(ours), settings_of(theirs)
    found = differences(_digests(a), _digests(b), scope_digests(a), scope_digests(b))
    assert found == differences(_digests(b), _digests(a), scope_digests(b), scope_digests(a))
    return tuple((each.bucket_type, each.bucket, *each.properties) for each in found)


def test_a_buckets_property_that_differs_is_named_with_its_bucket() -> None:
    """One side has set it and the other nothing, or something else: the bucket and only that property are named."""
    off: dict[str, Value] = {"allow_mult": False}
    assert between({ORDERS: off}, {}) == ((b"default", b"orders", "allow_mult"),)
    assert between({ORDERS: off}, {ORDERS: {**off, "delete_mode": "immediate"}}) == (
        (b"default", b"orders", "delete_mode"),
    )
    assert between({ORDERS: off}, {ORDERS: {"allow_mult": True, "w": 2}}) == ((b"default", b"orders", "allow_mult"),)
    assert between({ORDERS: off}, {ORDERS: {**off, "w": 2}}) == ()
    assert between({ORDERS: off}, {ORDERS: off}) == ()


def test_a_bucket_types_property_is_named_once_and_not_for_the_buckets_that_have_it_from_there() -> None:
    """A bucket whose own property agrees is not named for differences that both sides inherit; one that differs in
    itself is named beside its bucket type."""
    kind, plain = PropertyScope("default"), {ORDERS: {"repl_reap": True}}
    assert between({kind: {"allow_mult": False}, **plain}, plain) == ((b"default", None, "allow_mult"),)
    assert between({kind: {"allow_mult": False, "repl_reap": True}}, {}) == (
        (b"default", None, "allow_mult", "repl_reap"),
    )
    assert between({kind: {"allow_mult": False}, ORDERS: {"delete_mode": "immediate"}}, {}) == (
        (b"default", None, "allow_mult"),
        (b"default", b"orders", "delete_mode"),
    )
    both = {kind: {"allow_mult": False}}
    assert between({**both, ORDERS: {"allow_mult": True}}, both) == ((b"default", b"orders", "allow_mult"),)
    assert between({**both, ORDERS: {"allow_mult": True}}, {}) == ((b"default", None, "allow_mult"),)


def test_a_side_that_sent_no_scopes_has_only_its_bucket_types_named() -> None:
    """Either side may be of an older version: differing bucket types are named, without details, and no others."""
    ours, theirs = (
        settings_of({ORDERS: {"allow_mult": False}, PropertyScope("maps"): {"repl_reap": True}}),
        settings_of({PropertyScope("maps"): {"repl_reap": True}}),
    )
    for a, b in ((scope_digests(ours), None), (None, scope_digests(theirs)), (None, None)):
        assert differences(_digests(ours), _digests(theirs), a, b) == (PropertyDifference(b"default"),)
        assert differences(_digests(ours), _digests(ours), a, b) == ()


def test_scopes_that_show_no_difference_leave_the_bucket_type_named() -> None:
    """The longer digest of the bucket type decides: if two short ones are equal by chance, or a differing property is
    unknown to this version, the bucket type is still named. If only short digests differ, nothing is."""
    scopes = {b"default": {b"orders": PLAIN_SCOPE + b"xy"}}
    assert differences({b"default": b"1" * 8}, {}, scopes, {}) == (PropertyDifference(b"default"),)
    assert differences({}, {}, {b"default": {b"orders": bytes(10)}}, {}) == ()


def test_scopes_are_sent_up_to_their_bounds_and_not_at_all_beyond() -> None:
    """Sending only a part of them would show false differences."""

    def buckets(count: int, length: int) -> PropertySettings:
        return settings_of({PropertyScope("t", b"%0*d" % (length, n)): {"allow_mult": False} for n in range(count)})

    told = scope_digests(buckets(SCOPES_MAX, 8))
    assert told is not None
    assert len(told[b"t"]) == SCOPES_MAX
    assert scope_digests(buckets(SCOPES_MAX + 1, 8)) is None
    of_each = SCOPES_BYTES_MAX // 100 - len(PLAIN_SCOPE) - 1
    assert scope_digests(buckets(100, of_each)) is not None
    assert scope_digests(buckets(100, of_each + 1)) is None
    assert OWN_BUCKETS_MAX > SCOPES_MAX, "or the bound is never reached"
    assert scope_digests(PropertySettings()) == {}


@pytest.mark.parametrize("name", MUST_AGREE)
def test_each_property_has_its_place_in_the_digest(name: str) -> None:
    """A value other than the default changes its two bytes and no others."""
    values: tuple[Value, ...] = ("keep", "immediate", 5_000) if name == "delete_mode" else (False, True)
    digests = [scope_digest({name: value}) for value in values]
    at = MUST_AGREE.index(name) * VALUE_BYTES
    assert len({digest[at : at + VALUE_BYTES] for digest in digests}) == len(values)
    assert len({digest[:at] + digest[at + VALUE_BYTES :] for digest in [PLAIN_SCOPE, *digests]}) == 1


def test_a_difference_is_shown_with_its_place_and_properties_in_one_line() -> None:
    """A difference at several nodes is named once; a bucket type alone is omitted if another node reports its
    details."""
    order, kind = (
        PropertyDifference(b"default", b"a b", ("allow_mult",)),
        PropertyDifference(b"maps", None, MUST_AGREE[:2]),
    )
    assert differences_shown([order]) == "bucket default/a%20b: allow_mult"
    assert merged([kind, PropertyDifference(b"default"), order, order]) == [order, kind]
    assert differences_shown([kind, PropertyDifference(b"sets"), order]) == (
        "bucket default/a%20b: allow_mult; bucket type maps: allow_mult, last_write_wins; "
        "sets: of the bucket type or of one of its buckets"
    )
    many = [PropertyDifference(b"default", b"%d" % n, ("allow_mult",)) for n in range(NAMED_MAX + 3)]
    assert differences_shown(many).endswith(f"bucket default/{NAMED_MAX - 1}: allow_mult; and 3 more")
    assert types_of([kind, order, order]) == ["default", "maps"]
