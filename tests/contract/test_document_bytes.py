"""The controller's documents in the metastore keep the bytes of earlier versions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from isthmus.repl.controller.bucket_properties import (
    PropertyScope,
    PropertySettings,
    decode_properties,
    encode_properties,
)
from isthmus.repl.controller.dynamic_options import OptionSettings, decode_options, encode_options
from isthmus.repl.controller.reassignment_orders import (
    DrainedNode,
    FinishedOrder,
    Placement,
    decode_placement,
    encode_placement,
)
from isthmus.repl.controller.reassignment_plan import ReplicaMove
from isthmus.repl.controller.reassignment_progress import ReassignmentKind, ReassignmentOrder
from isthmus.repl.controller.stored_setting import Setting
from isthmus.repl.metastore.counters import CHAIN_COUNTER, StoredCounter
from isthmus.repl.metastore.port import Versioned
from isthmus.repl.model.errors import Corruption

OPTIONS = OptionSettings(
    {"replication.min.isr": Setting(2, "ann@desk", 17), "read.isolation.default": Setting("committed", 'é"', 0)},
    {"b": {"replication.min.isr": Setting(1, "", 1)}, "a": {"x.of.tomorrow": Setting("v", "bob", 9)}},
)
OPTIONS_TEXT = (
    r'{"v":1,"cluster":{"read.isolation.default":{"value":"committed","by":"é\"","at_ms":0},'
    '"replication.min.isr":{"value":2,"by":"ann@desk","at_ms":17}},"types":{"a":{"x.of.tomorrow":{"value":"v",'
    '"by":"bob","at_ms":9}},"b":{"replication.min.isr":{"value":1,"by":"","at_ms":1}}}}'
)
PROPERTIES = PropertySettings(
    {
        PropertyScope("notes"): {
            "warn_siblings": Setting(9, "a", 1),
            "allow_mult": Setting(False, "ann é", 2),
        },
        PropertyScope("notes", b"a/b \xff"): {"delete_mode": Setting("keep", "a", 3)},
        PropertyScope("a", b"b"): {"delete_mode": Setting(3000, "a", 4)},
    }
)
PROPERTIES_TEXT = (
    '{"v":1,"places":[["a","b",{"delete_mode":[3000,"a",4]}],["notes",null,{"allow_mult":[false,"ann é",2],'
    '"warn_siblings":[9,"a",1]}],["notes","a%2Fb%20%FF",{"delete_mode":["keep","a",3]}]]}'
)
MOVES = (ReplicaMove(0, ("n1", "n2"), ("n3", "n2")), ReplicaMove(7, ("n1",), ("é",)))
PLACEMENT = Placement(
    (
        ReassignmentOrder(4, ReassignmentKind.DRAIN, "drain n1", "ann", 17, MOVES),
        ReassignmentOrder(5, ReassignmentKind.FILE, "t", "bob", 18, (), "eve"),
    ),
    (FinishedOrder(3, ReassignmentKind.SPREAD, "all", "ann", 1, 2, "done", 3, 4),),
    {"n2": DrainedNode("x", 1), "n1": DrainedNode('"', 5)},
    6,
)
PLACEMENT_TEXT = (
    '{"v":1,"next":6,"nodes":["n1","n2","n3","é"],"orders":[{"number":4,"kind":"drain","title":"drain n1","by":"ann",'
    '"at_ms":17,"cancelled_by":"","moves":[[0,[0,1],[2,1]],[7,[0],[3]]]},{"number":5,"kind":"file","title":"t",'
    '"by":"bob","at_ms":18,"cancelled_by":"eve","moves":[]}],"ended":[[3,"spread","all","ann",1,2,"done",3,4]],'
    r'"drained":{"n1":["\"",5],"n2":["x",1]}}'
)


def test_dynamic_options_keep_their_bytes() -> None:
    """Names are in order, each setting with its operator and time; names that this version does not know are kept."""
    assert encode_options(OPTIONS).decode() == OPTIONS_TEXT
    assert decode_options(Versioned(OPTIONS_TEXT.encode(), 4)) == replace(OPTIONS, version=4)
    assert encode_options(OptionSettings()) == b'{"v":1,"cluster":{},"types":{}}'


def test_reasons_are_beside_what_earlier_versions_read() -> None:
    """A setting without one has the bytes of earlier versions; with one it has a key more, which those ignore. The
    reasons of properties are in a list of their own, since the settings there have no names."""
    option = OptionSettings({"replication.min.isr": Setting(2, "ann", 17, "a disk is slow")}, {})
    text = (
        '{"v":1,"cluster":{"replication.min.isr":{"value":2,"by":"ann","at_ms":17,"reason":"a disk is slow"}},'
        '"types":{}}'
    )
    assert encode_options(option).decode() == text
    assert decode_options(Versioned(text.encode(), 4)) == replace(option, version=4)
    properties = PropertySettings(
        {
            PropertyScope("notes"): {
                "allow_mult": Setting(False, "ann", 2),
                "r": Setting(1, "a", 1, "as in Riak"),
            },
            PropertyScope("notes", b"\xff"): {"delete_mode": Setting("keep", "a", 3, "law")},
        }
    )
    text = (
        '{"v":1,"places":[["notes",null,{"allow_mult":[false,"ann",2],"r":[1,"a",1]}],["notes","%FF",'
        '{"delete_mode":["keep","a",3]}]],"reasons":[["notes",null,{"r":"as in Riak"}],["notes","%FF",'
        '{"delete_mode":"law"}]]}'
    )
    assert encode_properties(properties).decode() == text
    assert decode_properties(Versioned(text.encode(), 4)) == replace(properties, version=4)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"v":1', '"v":2'),
        ('"at_ms":17', '"at_ms":"17"'),
        ('"value":2', '"value":true'),
        ('"value":2', '"value":1.5'),
        ('"value":2,', ""),
        ('"types"', '"kinds"'),
        ("}}}}", "}}}"),
    ],
)
def test_damaged_options_are_corruption(old: str, new: str) -> None:
    """The error names the document."""
    with pytest.raises(Corruption, match="/options in the metastore"):
        decode_options(Versioned(OPTIONS_TEXT.replace(old, new).encode(), 1))


def test_bucket_properties_keep_their_bytes() -> None:
    """Bucket types and buckets are in order; a bucket's bytes are percent-encoded."""
    assert encode_properties(PROPERTIES).decode() == PROPERTIES_TEXT
    assert decode_properties(Versioned(PROPERTIES_TEXT.encode(), 4)) == replace(PROPERTIES, version=4)
    assert encode_properties(PropertySettings()) == b'{"v":1,"places":[]}'


def test_placement_orders_keep_their_bytes() -> None:
    """Node names are written once; orders, history and drained nodes follow."""
    assert encode_placement(PLACEMENT).decode() == PLACEMENT_TEXT
    assert decode_placement(Versioned(PLACEMENT_TEXT.encode(), 4)) == replace(PLACEMENT, version=4)
    assert encode_placement(Placement()).decode() == ('{"v":1,"next":1,"nodes":[],"orders":[],"ended":[],"drained":{}}')


def test_counters_keep_their_bytes() -> None:
    """The next number, with the version on which it is raised."""
    assert CHAIN_COUNTER.encode(StoredCounter(12)) == b'{"v":1,"next":12}'
    assert CHAIN_COUNTER.decode(Versioned(b'{"v":1,"next":12}', 4)) == (12, 4)
    assert CHAIN_COUNTER.decode(None) == (0, None)
    for damaged in (
        b"",
        b"12",
        b'{"v":2,"next":1}',
        b'{"v":1}',
        b'{"v":1,"next":-1}',
        b'{"v":1,"next":9007199254740992}',
    ):
        with pytest.raises(Corruption, match="/placement/chain in the metastore"):
            CHAIN_COUNTER.decode(Versioned(damaged, 1))
