"""Riak's own Python client, unmodified, against a whole node: its own tests, and features that they leave out.

The client was written for Pythons of 2016; `_imported` gives back the names that Python has since moved or dropped, and
changes nothing in the client. Its other protocol needs a protobuf of that time, which would replace the one of today:
the modules that use it are replaced by empty ones.
"""

from __future__ import annotations

import collections
import collections.abc
import sys
import unittest
import warnings
from collections.abc import Callable, Iterator
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final
from unittest.mock import MagicMock

import pytest

from tests.support.threaded_node import ThreadedNode, running_node

pytestmark = pytest.mark.filterwarnings("ignore")

THEIRS = (
    "BasicKVTests.test_bad_key",
    "BasicKVTests.test_binary_store_and_get",
    "BasicKVTests.test_blank_binary_204",
    "BasicKVTests.test_bucket_delete",
    "BasicKVTests.test_custom_bucket_encoder_decoder",
    "BasicKVTests.test_delete",
    "BasicKVTests.test_generate_key",
    "BasicKVTests.test_get_params",
    "BasicKVTests.test_if_none_match",
    "BasicKVTests.test_is_alive",
    "BasicKVTests.test_list_buckets",
    "BasicKVTests.test_many_link_headers_should_work_fine",
    "BasicKVTests.test_missing_object",
    "BasicKVTests.test_no_returnbody",
    "BasicKVTests.test_resolution_default",
    "BasicKVTests.test_siblings",
    "BasicKVTests.test_store_and_get",
    "BasicKVTests.test_store_metadata",
    "BasicKVTests.test_store_obj_with_unicode",
    "BasicKVTests.test_store_of_missing_object",
    "BasicKVTests.test_store_unicode_string",
    "BasicKVTests.test_stream_buckets",
    "BasicKVTests.test_stream_buckets_abort",
    "BasicKVTests.test_string_bucket_name",
    "BasicKVTests.test_tombstone_siblings",
    "BasicKVTests.test_text_plain_encoder_decoder",
    "BasicKVTests.test_unknown_content_type_encoder_decoder",
    "BucketPropsTest.test_primary_quora",
    "BucketPropsTest.test_rw_settings",
    "KVFileTests.test_store_binary_object_from_file",
)
"""Excluded tests of the client's suite for keys and values: counters, which we do not have; a preflist of three nodes;
a file that is not in the package; features of another protocol; a listing of 1 ms, which may well finish in time; and
two that need Riak's defaults of properties: `allow_mult` false without being set, and an `n_val` of a single bucket."""

LONG: Final = ("test_resolution", "test_stream_keys", "test_stream_keys_abort")
"""These tests wait between writes, or first write a thousand keys one by one."""


class EmptyModule(ModuleType):
    """A module in which any name is something."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock()


class EmptyModules(MetaPathFinder, Loader):
    """Finds the client's generated modules for protobuf."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        mine = fullname.startswith("riak.pb.") and fullname.endswith("_pb2")
        return ModuleSpec(fullname, self) if mine else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return EmptyModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        return


def _imported(port: int) -> Any:
    """The client's package with its tests, which read where the server is when they are imported."""
    named = collections.namedtuple
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in collections.abc.__all__:
            patch.setattr(collections, name, getattr(collections.abc, name), raising=False)
        patch.setattr(collections, "namedtuple", lambda *given, verbose=False, **more: named(*given, **more))
        for name, value in {"PROTOCOL": "http", "HTTP_PORT": str(port)}.items():
            patch.setenv(f"RIAK_TEST_{name}", value)
        for name in ("RUN_KV", "RUN_RESOLVE"):
            patch.setenv(name, "1")
        patch.setattr(sys, "meta_path", [EmptyModules(), *sys.meta_path])
        import riak
        import riak.tests.test_kv
    return riak


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadedNode]:
    with running_node(tmp_path_factory.mktemp("node")) as found:
        yield found


@pytest.fixture(scope="module")
def riak(node: ThreadedNode) -> Any:
    package = _imported(node.http)
    package.tests.test_kv.setUpModule()
    return package


@pytest.fixture
def client(riak: Any, node: ThreadedNode) -> Iterator[Any]:
    made = riak.RiakClient(protocol="http", host="127.0.0.1", http_port=node.http, retries=0)
    yield made
    made.close()


@pytest.mark.parametrize("name", [*THEIRS, *(pytest.param(f"BasicKVTests.{n}", marks=pytest.mark.slow) for n in LONG)])
def test_the_clients_own_test_passes(riak: Any, name: str) -> None:
    """The expectations of the client's authors about Riak are met."""
    kind, _, method = name.partition(".")
    case = getattr(riak.tests.test_kv, kind)(method)
    result = unittest.TestResult()
    unittest.TestSuite([case]).run(result)
    assert result.testsRun == 1
    assert not result.skipped
    for _, trace in (*result.failures, *result.errors):
        pytest.fail(trace)


def test_names_of_any_kind_are_read_and_listed_as_they_were_written(client: Any) -> None:
    """Spaces, plus signs, slashes, percent signs and umlauts in buckets and keys come back, also from listings."""
    names = ["a b", "a+b", "a/b", "a%20b", "ä ö", "&=?#", "'\"<>"]
    for name in names:
        bucket = client.bucket("of " + name)
        bucket.new(name, data={"name": name}).store()
        assert bucket.get(name).data == {"name": name}
        assert bucket.get_keys() == [name]
    assert {b.name for b in client.get_buckets()} >= {"of " + name for name in names}


def test_keys_are_streamed_until_the_client_has_enough(client: Any) -> None:
    """A stream brings every key once; one that the client leaves costs the connection nothing else."""
    bucket = client.bucket("streamed")
    for number in range(20):
        bucket.new(str(number), data=number).store(return_body=False)
    found = [key for part in bucket.stream_keys() for key in part]
    assert sorted(found, key=int) == [str(number) for number in range(20)]
    stream = bucket.stream_keys()
    assert next(iter(stream))
    stream.close()
    assert client.ping()


def test_links_indexes_and_metadata_come_back(client: Any) -> None:
    """Everything that the client writes with a value it reads back: charset, links, indexes of both kinds, metadata."""
    written = client.bucket("rich").new("k", encoded_data=b"v", content_type="text/plain")
    written.charset = "utf-8"
    written.links = [("b 1", "k+1", "tag/1"), ("b2", "k2", "t2")]
    written.usermeta = {"colour": "red"}
    written.add_index("name_bin", "x").add_index("age_int", 5).add_index("age_int", 7)
    written.store()
    read = client.bucket("rich").get("k")
    assert sorted(read.links) == [("b 1", "k+1", "tag/1"), ("b2", "k2", "t2")]
    assert read.usermeta == {"colour": "red"}
    assert read.indexes == {("name_bin", "x"), ("age_int", 5), ("age_int", 7)}
    assert (read.content_type, read.charset) == ("text/plain", "utf-8")


def test_siblings_are_seen_and_resolved(client: Any) -> None:
    """Two writers without a clock make siblings; storing the resolved object leaves one."""
    bucket = client.bucket("siblings")
    for value in ("one", "two"):
        bucket.new("k", data=value).store(return_body=False)
    both = bucket.get("k")
    assert sorted(s.data for s in both.siblings) == ["one", "two"]
    both.siblings = [both.siblings[0]]
    both.store()
    assert len(bucket.get("k").siblings) == 1


def test_the_client_finds_out_what_is_there(client: Any, riak: Any) -> None:
    """The client's feature detection sees a Riak with bucket types and preflists, and no feature that is absent
    here."""
    assert client.ping()

    transport = riak.transports.http.HttpTransport(node=client.nodes[0], client=client)
    try:
        assert transport.bucket_types()
        assert transport.tombstone_vclocks()
        assert transport.bucket_stream()
        assert transport.riak_kv_wm_preflist is not None
        assert transport.riak_kv_wm_counter is None
        assert transport.yz_wm_search is None
    finally:
        transport.close()
    nodes = [entry["node"] for entry in client.get_preflist(client.bucket("b"), "k")]
    assert nodes == ["n1"]


@pytest.mark.parametrize(
    "act",
    [
        lambda c: c.bucket("b").get_index("f_bin", "v"),
        lambda c: c.add("b", "k").map("Riak.mapValuesJson").run(),
        lambda c: c.bucket_type("default").bucket("b").get_counter("k"),
    ],
)
def test_an_absent_feature_is_an_error_of_the_client(client: Any, riak: Any, act: Callable[[Any], Any]) -> None:
    """Queries, MapReduce and counters fail with the client's own error, and the connection stays open."""
    with pytest.raises(riak.RiakError):
        act(client)
    assert client.ping()
