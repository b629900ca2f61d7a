"""Config files to settings: all faults at once, each with key path, line and what would be right."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from isthmus.config.loader import FILE_BYTES_MAX, ConfigError, effective, load_file, load_text
from isthmus.config.settings import Address, PeerSettings, QueueSettings, Settings

SAMPLES = Path(__file__).parents[4] / "config" / "samples"

NODE = '[node]\nname = "n1"\ncluster = "east"\ndata_dir = "data"\n'
"""The least that a file must say; four lines."""


def load(text: str, file: str = "/etc/isthmus/node.toml") -> Settings:
    """Settings of a text after the [node] section."""
    return load_text(NODE + textwrap.dedent(text), Path(file))


AGAIN = "section [{0}] is there twice, or also as [[{0}]]; write it once, with all of its keys"
"""A section that stands twice."""


def faults(text: str) -> list[str]:
    """The sentences about a text that must be refused, without the file's name."""
    with pytest.raises(ConfigError) as caught:
        load_text(textwrap.dedent(text), Path("n.toml"))
    assert all("\n" not in sentence and len(sentence) < 300 for sentence in caught.value.sentences())
    return [sentence.removeprefix("n.toml:") for sentence in caught.value.sentences()]


def fault(text: str) -> str:
    """The one sentence about what follows a right [node] section; its line counts from 1 after that section."""
    (only,) = faults(NODE + textwrap.dedent(text))
    line, colon, rest = only.partition(":")
    return f"{int(line) - NODE.count(chr(10))}{colon}{rest}"


def test_the_sample_of_one_node_loads() -> None:
    """The sample in config/samples is a right file and means what its comments say."""
    settings = load_file(SAMPLES / "node.toml")
    assert settings.node.name == "east-1"
    assert settings.node.data_dir == SAMPLES / "data" / "east-1"
    assert settings.queues == (QueueSettings("west"),)
    assert settings.sink.peers == (), "a first node begins without a warning about a peer that is not there"
    peer = '[[sink.peers]]\nurl = "http://west-1.example:8098"\nqueue = "east"\n'
    sample = (SAMPLES / "node.toml").read_text()
    commented = "".join(f"# {line}\n" for line in peer.splitlines())
    assert commented in sample
    settings = load_text(sample.replace(commented, peer), SAMPLES / "node.toml")
    assert settings.sink.peers == (PeerSettings("http://west-1.example:8098", "east"),)


def test_a_file_with_the_least_gets_every_default() -> None:
    """All but [node] may be left out."""
    settings = load("")
    assert settings == Settings(settings.node)
    assert settings.node.data_dir == Path("/etc/isthmus/data")


def test_values_in_file_units_become_numbers() -> None:
    """Durations, sizes, counts, addresses and lists arrive typed, under the names of the fields."""
    settings = load(
        """
        [listen]
        http = "[::1]:0"
        [replication]
        log_file_size = "1MiB"
        log_batch_size = "1MiB"
        [sink]
        poll = "1.5s"
        batch = 7
        [[queues]]
        name = "a"
        object_limit = 3
        cascade = true
        [[queues]]
        name = "b"
        lease = "1m"
        """
    )
    assert settings.listen.http == Address("::1", 0)
    assert settings.replication.log_file_bytes == 1 << 20
    assert (settings.sink.poll_ms, settings.sink.batch_count) == (1500, 7)
    assert settings.queues == (
        QueueSettings("a", object_limit_count=3, cascade=True),
        QueueSettings("b", lease_ms=60_000),
    )


def test_all_faults_are_reported_at_once_in_the_order_of_lines() -> None:
    """One wrong value does not hide the next, whatever section it is in; relations are still checked."""
    assert faults(
        """\
        [node]
        name = "n 1"
        cluster = 5
        [sink]
        wokers = 3
        delay_min = "9s"
        workers = "8"
        [[sink.peers]]
        url = "http://peer"
        [[queues]]
        filter = "bucket:b"
        [replicaton]
        """
    ) == [
        "1: node.data_dir: missing; this key has no default (a path)",
        '2: node.name: "n 1" is not a name; a name is 1 to 64 letters, digits, - _ . and begins with a letter or digit',
        "3: node.cluster: 5 is not a text; write it in quotes",
        '5: sink.wokers: unknown key; did you mean "workers"?',
        "6: sink.delay_min: the first delay must not be longer than the longest (delay_min <= delay_max)",
        '7: sink.workers: "8" is not a whole number; write digits without quotes',
        "8: sink.peers[0].queue: missing; this key has no default (a name)",
        '9: sink.peers[0].url: "peer" is not an address; write HOST:PORT, such as "127.0.0.1:8098" or "[::1]:8098"',
        "10: queues[0].name: missing; this key has no default (a name)",
        (
            '11: queues[0].filter: "bucket:b" is not a rule of a filter; rules are any, block_rtq, buckettype:T, '
            "bucketname:B, bucketprefix:P, or ! before one of the last three"
        ),
        '12: replicaton: unknown section; did you mean "replication"?',
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "[sink]\npoll_ms = 5000",
            '2: sink.poll_ms: unknown key; in a file the unit is part of the value: poll = "5s"',
        ),
        ("[sink]\nlevel = 1", "2: sink.level: unknown here; there is such a key in [log]"),
        (
            '[tokens]\nroot = "a"',
            (
                "2: tokens.root: unknown here; there is such a key in [metastore]; known here: read, write, operate, "
                "replicate, admin, http_open, metrics_open"
            ),
        ),
        (
            '[listen]\nhttp = "http://127.0.0.1:8098"',
            (
                '2: listen.http: "http://127.0.0.1:8098" is a URL; write HOST:PORT, such as "127.0.0.1:8098" or '
                '"[::1]:8098", without a scheme and without a path'
            ),
        ),
        (
            '[metastore]\nhosts = "zk1:2181,zk2:2181,zk1:2181"',
            '2: metastore.hosts: "zk1:2181" is there twice; name each ZooKeeper once',
        ),
        (
            '[sink]\npoll = "5sec"',
            '2: sink.poll: "5sec": there is no duration unit "sec"; did you mean "s"? units are ms, s, m, h, d',
        ),
        ("[log]\nx = 1", "2: log.x: unknown key; known here: level, format, audit_size, audit_files"),
        ("[log]\n'a b' = 1", '2: log."a b": unknown key; known here: level, format, audit_size, audit_files'),
        ("log = 1", "1: node.log: unknown key; known here: name, cluster, data_dir, id, rack"),
        (
            "[queues]\nname = 'a'",
            "1: queues: queues is a list; write [[queues]], in double brackets, before each of them",
        ),
        ("[[log]]", "1: log: log is a section; write [log] and its keys below"),
        ("[sink]\npeers = [1]", "2: sink.peers[0]: not a table; write [[sink.peers]] and its keys below"),
        ("[sink]\npoll = 5", '2: sink.poll: 5 is not a duration; write it with its unit in quotes: "5s"'),
        ("[limits]\nkey_size = 10", '2: limits.key_size: 10 is not a size; write it with its unit in quotes: "200KB"'),
        ("[sink]\nworkers = true", "2: sink.workers: true is not a whole number; write digits without quotes"),
        ("[sink]\nworkers = 0", "2: sink.workers: 0 is out of range; allowed is 1 to 256"),
        ("[sink]\nworkers = -1", "2: sink.workers: -1 is out of range; allowed is 1 to 256"),
        (
            "[sink]\nworkers = 0xffffffffffffffffff",
            "2: sink.workers: a number beyond 64 bits is out of range; allowed is 1 to 256",
        ),
        ("[sink]\npoll = '1h'", '2: sink.poll: "1h" is out of range; allowed is 0s to 5m'),
        (
            "[listen]\nhttp = 8098",
            '2: listen.http: 8098 is not an address; write HOST:PORT in quotes: "127.0.0.1:8098"',
        ),
        (
            "[[queues]]\nname = 'q'\ncascade = 'yes'",
            '3: queues[0].cascade: "yes" is neither true nor false; write one of these without quotes',
        ),
        (
            "[replication]\ndurability = 'fsink'",
            '2: replication.durability: "fsink" is not known; choose one of "fsync", "async"',
        ),
    ],
)
def test_a_fault_shows_what_would_be_right(text: str, sentence: str) -> None:
    """Unknown, misplaced, mistyped and out-of-range keys each get one sentence with the remedy."""
    assert fault(text) == sentence


def test_a_fault_in_an_inline_table_has_its_line() -> None:
    """Arrays over several lines do not blur which element is wrong."""
    text = """\
        [sink]
        peers = [
            { url = "http://a:1", queue = "q" },
            { url = "http://b:1", queue = "q", port = 2 },
        ]
        """
    assert fault(text) == "4: sink.peers[1].port: unknown key; known here: url, queue, cluster, token_file"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "1: node: section [node] is missing; it must set name, cluster, data_dir"),
        ("[node\n", "1: not TOML: Expected ']' at the end of a table declaration, at column 6"),
        ("a = 1\na = 2\nb = 3", "2: not TOML: a key is set twice, at column 6"),
        ("[node]\na = 1\n[node]\n", f"3: not TOML: {AGAIN.format('node')}, at column 6"),
        ("[sink.x]\n[sink.x]\n", f"2: not TOML: {AGAIN.format('sink.x')}, at column 8"),
        ("[[queues]]\n[queues]\n", f"2: not TOML: {AGAIN.format('queues')}, at column 8"),
        ("x = 'a\n'", None),
        ("a = [", "1: not TOML: Invalid value, at the end of the file"),
        ("a = 1\r", None),
        ("a = " + "[" * 20_000, " is nested too deeply to be a config file"),
        ("a = " + "9" * 5_000, " holds a number of thousands of digits"),
        ("a = 0x" + "f" * 5_000, None),
    ],
)
def test_text_that_is_no_toml_gives_one_line(text: str, sentence: str | None) -> None:
    """Syntax errors have line and column; hostile nesting and numbers are refused without a traceback."""
    found = faults(text)
    if sentence is not None:
        assert found == [sentence]


@pytest.mark.parametrize("data_dir", ["", " ", "~/data", "a\\u0000b"])
def test_a_data_directory_is_a_plain_path(data_dir: str) -> None:
    """A path that a shell would expand, or that no system could open, is refused when the file is read."""
    (sentence,) = faults(f'[node]\nname = "n"\ncluster = "c"\ndata_dir = "{data_dir}"\n')
    assert sentence.startswith("4: node.data_dir: ")


def test_origins_and_effective_values_name_file_and_line() -> None:
    """Values set in the file have FILE:LINE as origin, all others "default"; values are printed as they would be
    written in a file."""
    settings = load('[[queues]]\nname = "q"\n[sink]\npoll = "1000ms"\n')
    rows = {row.path: row[1:] for row in effective(settings)}
    file = "/etc/isthmus/node.toml"
    assert rows["node.name"] == ('"n1"', f"{file}:2")
    assert rows["queues[0].name"] == ('"q"', f"{file}:6")
    assert rows["queues[0].lease"] == ('"30s"', "default")
    assert rows["sink.poll"] == ('"1s"', f"{file}:8")
    assert rows["sink.peers"] == ("[]", "default")
    assert rows["replication.log_size"] == ('"1GB"', "default")
    assert set(settings.origins) <= {*rows, "queues"}


def test_effective_values_make_the_same_settings_again() -> None:
    """The output of `effective` is a config file: loading it gives equal settings."""
    peer = '[[sink.peers]]\nurl = "http://west-1.example:8098"\nqueue = "east"\n'
    settings = load_text((SAMPLES / "node.toml").read_text() + peer, SAMPLES / "node.toml")
    plain, tables = [], []
    for path, text, _ in effective(settings):
        table, _, key = path.rpartition(".")
        if not table.endswith("]"):
            plain.append(f"{path} = {text}")
        elif key in ("name", "url"):
            tables += [f"[[{table.partition('[')[0]}]]", f"{key} = {text}"]
        else:
            tables.append(f"{key} = {text}")
    assert load_text("\n".join([*plain, *tables]), Path("/elsewhere/x.toml")) == settings


def test_a_file_that_cannot_be_read_gives_one_line(tmp_path: Path) -> None:
    """Missing, a directory, not UTF-8, too large: each one sentence that names the file."""
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b"# ok\n# \xe9\n")
    large = tmp_path / "large.toml"
    large.write_bytes(b"#" * (FILE_BYTES_MAX + 1))
    expected = {
        tmp_path / "none.toml": ": does not exist",
        tmp_path: ": is a directory; name the config file in it",
        latin: ":2: byte 7 is not UTF-8; save the file as UTF-8",
        large: f": has more than {FILE_BYTES_MAX} bytes, too many for a config file",
        latin / "below.toml": ": cannot be read: Not a directory",
    }
    for path, sentence in expected.items():
        with pytest.raises(ConfigError) as caught:
            load_file(path)
        assert str(caught.value) == f"{path}{sentence}"


def test_files_of_other_systems_are_read(tmp_path: Path) -> None:
    """A byte order mark and CRLF line ends change neither values nor line numbers."""
    file = tmp_path / "node.toml"
    file.write_bytes(b"\xef\xbb\xbf" + (NODE + "[sink]\nworkers = 3\n").replace("\n", "\r\n").encode())
    settings = load_file(file)
    assert settings.sink.workers == 3
    assert settings.origins["sink.workers"] == f"{file}:6"
    assert settings.node.data_dir == tmp_path / "data"
