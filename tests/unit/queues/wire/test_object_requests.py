"""The bodies of a request for one object: round trips, versions, hostile bytes."""

from __future__ import annotations

import msgpack
import pytest

from isthmus.queues.wire import (
    PART_BYTES_MAX,
    ObjectReply,
    ObjectRequest,
    UnknownFetchVersion,
    decode_asking,
    decode_object_reply,
    encode_asking,
    encode_object_reply,
)
from isthmus.repl.model.errors import CodecError
from isthmus.repl.model.keys import Key

ASKED = ObjectRequest(b"c" * 16, "west", Key(b"default", b"b\xff", b"k"))
BASE = {"v": 1, "cluster": b"c" * 16, "name": "west", "bucket_type": b"t", "bucket": b"b", "key": b"k"}


ASKED_BODY = bytes.fromhex(
    "86a17601a7636c7573746572c41063636363636363636363636363636363a46e616d65a477657374ab6275636b65745f7479"
    "7065c40764656661756c74a66275636b6574c40262ffa36b6579c4016b"
)
REPLY_BODY = bytes.fromhex(
    "84a17601a7636c7573746572c41065656565656565656565656565656565a46e616d65a465617374a77061796c6f6164c4020001"
)
"""As earlier versions encode ASKED and its answer."""


def test_both_have_the_bytes_of_earlier_versions() -> None:
    """Clusters of other versions decode them, and theirs are decoded here."""
    reply = ObjectReply(b"e" * 16, "east", b"\x00\x01")
    assert (encode_asking(ASKED), decode_asking(ASKED_BODY)) == (ASKED_BODY, ASKED)
    assert (encode_object_reply(reply), decode_object_reply(REPLY_BODY)) == (REPLY_BODY, reply)


def test_requests_and_answers_come_back_as_they_went() -> None:
    """Keys and objects are opaque bytes; an unknown field is skipped."""
    assert decode_asking(encode_asking(ASKED)) == ASKED
    for payload in (None, b"", b"\x00" * 1_000):
        reply = ObjectReply(b"e" * 16, "east", payload)
        assert decode_object_reply(encode_object_reply(reply)) == reply
    assert decode_asking(msgpack.packb(BASE | {"later": [1]})).key.key == b"k"


@pytest.mark.parametrize(
    "fields",
    [
        {"cluster": b"short"}, {"name": b"west"}, {"name": "w" * 256}, {"key": b""}, {"key": "text"}, {"bucket": None},
        {"key": b"k" * (PART_BYTES_MAX + 1)},
    ],
    ids=str,
)  # fmt: skip
def test_a_request_with_a_wrong_field_is_refused(fields: dict[str, object]) -> None:
    """Every field has its type and range."""
    with pytest.raises(CodecError):
        decode_asking(msgpack.packb(BASE | fields))


def test_another_version_and_noise_are_refused_with_a_reason() -> None:
    """Both bodies have a version; a body that is not a map, or is truncated, is malformed."""
    for decode in (decode_asking, decode_object_reply):
        with pytest.raises(UnknownFetchVersion, match="version 2, this program speaks 1"):
            decode(msgpack.packb(BASE | {"v": 2}))
        for body in (b"", b"\xc1", b"\x90", b"\xdd\xff\xff\xff\xff", encode_asking(ASKED)[:-1]):
            with pytest.raises(CodecError):
                decode(body)
    with pytest.raises(CodecError, match="payload"):
        decode_object_reply(msgpack.packb(BASE | {"payload": "text"}))
