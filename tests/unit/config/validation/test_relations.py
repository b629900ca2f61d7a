"""Forms of single values and relations between settings."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from isthmus.config import validation
from isthmus.config.loader import ConfigError, load_text
from isthmus.config.schema import SettingDefinition, file_name, sections_of, settings_of
from isthmus.config.settings import Address, Settings
from isthmus.config.validation import check_filter
from isthmus.config.warnings import warnings_of
from isthmus.queues.filters import parse_filter

NODE = '[node]\nname = "n1"\ncluster = "east"\ndata_dir = "data"\n'


def every_setting(section: type = Settings) -> list[SettingDefinition]:
    """All settings of all sections."""
    inner = [setting for each in sections_of(section) for setting in every_setting(each.kind)]
    return [*settings_of(section).values(), *inner]


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8098", Address("127.0.0.1", 8098)),
        ("[::1]:8098", Address("::1", 8098)),
        ("[fe80::1%eth0]:0", Address("fe80::1%eth0", 0)),
        ("node-1.example.org:65535", Address("node-1.example.org", 65535)),
    ],
)
def test_addresses_are_read_and_written_alike(text: str, address: Address) -> None:
    """Host and port come apart, brackets go, and the text comes back."""
    assert validation.parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "text",
    [
        *["", "host", ":80", "host:", "host:x", "host:65536", "host:-1", "host:١", "::1:80", "[host]:80", "[::1]80"],
        *["a b:1", "http://a:1", "a/b:1", "h:00000000000000080", "[]:1", "host:" + "9" * 5000],
    ],
)
def test_an_invalid_address_is_refused(text: str) -> None:
    """Each refusal shows how an address is written, in one line."""
    with pytest.raises(ValueError, match="HOST:PORT") as caught:
        validation.parse_address(text)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("text", ["", ".", "..", "-a", "a/b", "a b", "ä", "a" * 65, "a\n"])
def test_an_invalid_name_is_refused(text: str) -> None:
    """Names become paths and URLs, so nothing that means something there is let in."""
    with pytest.raises(ValueError, match="is not a name"):
        validation.check_name(text)


def test_metastore_hosts_are_a_list_of_addresses() -> None:
    """Spaces around commas go; a path, a missing port and port 0 are refused."""
    assert validation.check_hosts("zk1:2181, zk2:2182") == "zk1:2181,zk2:2182"
    assert validation.check_hosts(" ") == ""
    for wrong, hint in [
        ("zk1", "HOST:PORT"),
        ("zk1:2181/x", "metastore.root"),
        ("zk1:0", "2181"),
        ("a:1,", "HOST:PORT"),
    ]:
        with pytest.raises(ValueError, match=hint):
            validation.check_hosts(wrong)


@pytest.mark.parametrize("text", ["isthmus", "/", "/a/", "/a//b", "/a/../b", "", "/a b"])
def test_a_metastore_root_is_a_plain_absolute_path(text: str) -> None:
    """Paths that ZooKeeper would refuse later are refused at once."""
    with pytest.raises(ValueError, match="not a metastore path"):
        validation.check_root(text)
    assert validation.check_root("/isthmus/prod-1") == "/isthmus/prod-1"


@pytest.mark.parametrize(
    "text",
    [
        "peer:8098",
        "ftp://a:1",
        "http://a",
        "http://a:1/x",
        "http://u@a:1",
        "http://a:1?q",
        "http://:1",
        "http://a:0",
        "HTTP:/a:1",
    ],
)
def test_a_peer_is_scheme_host_and_port(text: str) -> None:
    """Anything more or less in a peer's URL is refused; an end slash is not."""
    with pytest.raises(ValueError, match="HOST:PORT"):
        validation.check_peer_url(text)
    assert validation.check_peer_url("https://[::1]:8098/") == "https://[::1]:8098"


@pytest.mark.parametrize(
    ("text", "path", "line"),
    [
        ("[listen]\nadmin = '127.0.0.1:8098'", "listen.admin", 2),
        ("[listen]\nhttp = '0.0.0.0:8099'", "listen.http", 2),
        ("[metastore]\nembedded_port = 8098", "metastore.embedded_port", 2),
        ("[replication]\nlog_size = '64MB'", "replication.log_size", 2),
        ("[replication]\nlog_file_size = '2GB'", "replication.log_file_size", 2),
        ("[replication]\nlog_batch_size = '65MB'", "replication.log_batch_size", 2),
        ("[limits]\nobject_size = '65MB'", "limits.object_size", 2),
        ("[replication]\nfactor = 2", "replication.factor", 2),
        ("[sink]\ndelay_max = '9ms'", "sink.delay_max", 2),
        ("[[queues]]\nname = 'a'\n[[queues]]\nname = 'a'", "queues[1].name", 4),
        (
            "[[sink.peers]]\nurl = 'http://a:1'\nqueue = 'q'\n[[sink.peers]]\nqueue = 'q'\nurl = 'http://a:1/'",
            "sink.peers[1].url",
            6,
        ),
        ("[[sink.peers]]\nurl = 'http://127.0.0.1:8098'\nqueue = 'q'", "sink.peers[0].url", 2),
    ],
)
def test_a_broken_relation_is_a_fault_at_the_key_that_was_set(text: str, path: str, line: int) -> None:
    """Values that are each valid but wrong together are refused, at the line where the file can be corrected."""
    with pytest.raises(ConfigError) as caught:
        load_text(NODE + text, Path("n.toml"))
    (fault,) = caught.value.faults
    assert (fault.path, fault.line) == (path, line + NODE.count("\n"))


def test_a_relation_is_silent_where_one_value_is_wrong_by_itself() -> None:
    """A second fault that only follows from the first is not reported."""
    text = "[[queues]]\nname = ''\n[[queues]]\nname = ''\n[sink]\ndelay_min = '9s'\ndelay_max = 5\n"
    with pytest.raises(ConfigError) as caught:
        load_text(NODE + text, Path("n.toml"))
    assert [fault.path for fault in caught.value.faults] == ["queues[0].name", "queues[1].name", "sink.delay_max"]


def test_ports_may_agree_where_nothing_clashes() -> None:
    """Port 0, and one port on two different hosts, do not clash."""
    for text in ["[listen]\nhttp = '127.0.0.1:0'\nadmin = '127.0.0.1:0'", "[listen]\nhttp = '127.0.0.2:8099'"]:
        load_text(NODE + text, Path("n.toml"))


def test_every_default_is_read_back_from_the_text_that_a_file_has_for_it() -> None:
    """So it has the form of its field: a number is in its range, a text is one of the choices, or passes the check."""
    for setting in every_setting():
        if not setting.required:
            written = tomllib.loads(f"value = {setting.form.text(setting.default)}")["value"]
            assert setting.form.parse(written) == setting.default, setting


def test_keys_in_files_carry_no_unit() -> None:
    """The unit is part of the value: the key is the field's name without its unit."""
    names = {name: file_name(name) for name in ("poll_ms", "log_size_bytes", "log_file_bytes", "object_limit_count")}
    assert list(names.values()) == ["poll", "log_size", "log_file_size", "object_limit"]
    assert not [key.name for key in every_setting() if key.name.endswith(("_ms", "_bytes", "_count"))]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("any,block_rtq", "block_rtq stands alone"),
        ("any, bucketname:b", "beside it only negations (!...) change something"),
        ("bucketname:50%", "a percent sign is written as %25"),
        ("!any,bucket:b", '"!any", "bucket:b" are not rules of a filter'),
        ("", '"" is not a rule of a filter'),
        ("any, !bucketname: sp", '"!bucketname: sp": there is a space after the colon; write "!bucketname:sp", or %20'),
        ("buckettype:", '"buckettype:": no name; write buckettype:NAME'),
    ],
)
def test_a_filter_that_no_node_would_take_is_reported_before_one_runs(text: str, sentence: str) -> None:
    """`config check` refuses what the start would refuse, all wrong rules in one line."""
    with pytest.raises(ValueError, match=re.escape(sentence)):
        check_filter(text)


@pytest.mark.parametrize(
    "text", ["any", "block_rtq", "any,!bucketname:a%25b", "bucketprefix:x, !buckettype:t", "!bucketname:b"]
)
def test_filters_that_a_start_takes_pass_the_check(text: str) -> None:
    """The check of a file and the parser of a node accept the same filters."""
    assert check_filter(text) == text
    parse_filter(text)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://op:hunter2@east-1:8098", '"http://***@east-1:8098"'),
        ("http://op:hun/ter2@east-1:8098/x", '"http://***@east-1:8098/x"'),
        ("op:hunter2@east-1:8098", '"***@east-1:8098"'),
        ("http://east-1:8098/?token=hunter2", '"http://east-1:8098/?***"'),
        ("http://east-1:8098/#hunter2", '"http://east-1:8098/#***"'),
    ],
)
def test_a_secret_in_a_url_is_not_repeated(url: str, told: str) -> None:
    """Faults end up in logs and tickets, so they omit anything that may be a password or a token."""
    with pytest.raises(ValueError, match=re.escape(told)) as fault:
        validation.check_peer_url(url)
    assert "ter2" not in str(fault.value)


@pytest.mark.parametrize(
    "url",
    ["", "http://127.0.0.1:4318/v1/traces", "https://collector.example.org/v1/traces", "http://[::1]:4318/v1/traces"],
)
def test_the_url_of_a_collector_is_taken_as_it_is(url: str) -> None:
    """Its port may be that of the scheme."""
    assert load_text(f'{NODE}[traces]\nendpoint = "{url}"\n', Path("node.toml")).traces.endpoint == url


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("127.0.0.1:4318/v1/traces", "is not the URL of a collector"),
        ("grpc://127.0.0.1:4317/x", "is not the URL of a collector"),
        ("http://127.0.0.1:4318", "is not the URL of a collector"),
        ("http://127.0.0.1:4318/", "is not the URL of a collector"),
        ("http://op:hunter2@127.0.0.1:4318/v1/traces", "traces.headers_file"),
        ("http://127.0.0.1:4318/v1/traces?key=hunter2", "is not the URL of a collector"),
        ("http://127.0.0.1:0/v1/traces", "port 0"),
        ("http://127.0.0.1:x/v1/traces", "port is a number"),
    ],
)
def test_another_url_is_no_collectors(url: str, told: str) -> None:
    """The message describes a valid URL, and repeats no secret."""
    with pytest.raises(ValueError, match=re.escape(told)) as fault:
        validation.check_collector_url(url)
    assert "ter2" not in str(fault.value)


def test_headers_for_a_collector_over_http_are_doubted() -> None:
    """The headers may contain a token. There is no warning for an endpoint on this machine, over TLS, or without
    headers."""
    for url, headers, said in (
        ("http://collector:4318/v1/traces", 'headers_file = "h"\n', ["traces.endpoint"]),
        ("http://127.0.0.1:4318/v1/traces", 'headers_file = "h"\n', []),
        ("https://collector:4318/v1/traces", 'headers_file = "h"\n', []),
        ("http://collector:4318/v1/traces", "", []),
    ):
        settings = load_text(f'{NODE}[traces]\nendpoint = "{url}"\n{headers}', Path("node.toml"))
        assert [doubt.path for doubt in warnings_of(settings)] == said


def test_the_embedded_metastore_has_a_port_of_its_own() -> None:
    """One that is given to any of the node's listeners is reported as a fault, not by whichever starts second."""
    for key, port in (("http", 8098), ("admin", 8099), ("cluster", 8097)):
        text = f'{NODE}[listen]\n{key} = "127.0.0.1:{port}"\n[metastore]\nembedded_port = {port}\n'
        with pytest.raises(ConfigError, match=f"port {port} is given to listen.{key} already"):
            load_text(text, Path("node.toml"))


def test_a_peers_limit_beyond_the_pool_is_doubted() -> None:
    """The limit never takes effect, so it is likely a mistake. There is no warning for 0, an equal share, or for the
    whole pool."""
    for limit, said in ((9, ["sink.peer_limit"]), (4, []), (0, [])):
        settings = load_text(f"{NODE}[sink]\nworkers = 4\npeer_limit = {limit}\n", Path("node.toml"))
        assert [doubt.path for doubt in warnings_of(settings)] == said


def test_a_node_is_not_compared_with_itself() -> None:
    """A URL of a full-sync may not be this node's own, as with a sink's peer: the node would only be compared with
    itself."""
    text = f'{NODE}[listen]\nhttp = "10.0.0.1:8098"\n[[fullsync]]\nname = "west"\nqueue = "q"\n'
    load_text(text + 'urls = "http://10.0.0.2:8098,http://10.0.0.1:8097"\n', Path("node.toml"))
    with pytest.raises(ConfigError, match=r"10\.0\.0\.1:8098 is this node itself") as error:
        load_text(text + 'urls = "http://10.0.0.2:8098,http://10.0.0.1:8098"\n', Path("node.toml"))
    assert [fault.path for fault in error.value.faults] == ["fullsync[0].urls"]


@pytest.mark.parametrize(
    ("runs", "apart"), [("data", False), ("data/runs", False), (".", False), ("/data", True), ("data-runs", True)]
)
def test_runs_of_spark_lie_apart_from_the_nodes_data(runs: str, apart: bool) -> None:
    """Neither directory is, or lies in, the other, since other programs write into the directory of runs."""
    text = f'{NODE}[reconcile]\nruns_dir = "{runs}"\n'
    if apart:
        assert load_text(text, Path("/srv/n.toml")).reconcile.runs_dir == Path("/srv") / runs
        return
    with pytest.raises(ConfigError) as caught:
        load_text(text, Path("/srv/n.toml"))
    (fault,) = caught.value.faults
    assert (fault.path, "directories apart" in fault.message) == ("reconcile.runs_dir", True)
