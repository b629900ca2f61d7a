"""Tables on a terminal of 80 columns: the most used listings there, with `-o wide`, and with colours."""

from __future__ import annotations

import os
import sys
from typing import Any, Final

import pytest

from isthmus.node.cli import output
from isthmus.node.cli.main import main
from isthmus.node.cli.output import Column, column, short_host, table_lines
from tests.support import cluster_answers
from tests.support.cluster_answers import NOW_MS, option_row, queue_row, respond_as, sinks_answer
from tests.support.fake_admin_listener import FakeAdminListener


@pytest.fixture
def east(listener: FakeAdminListener, monkeypatch: pytest.MonkeyPatch) -> FakeAdminListener:
    """A cluster that answers, without colours."""
    respond_as(listener, "east")
    monkeypatch.setenv("NO_COLOR", "1")
    return listener


def shown(*words: str, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """The output of a command on a terminal of this many columns."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("shutil.get_terminal_size", lambda fallback=(80, 24): os.terminal_size((width, 24)))
    main(list(words))
    return capsys.readouterr().out


def partition_row(number: int, **changed: Any) -> dict[str, Any]:
    """A partition of /admin/partitions."""
    nodes = ["east-1", "east-2", "east-3"]
    return {
        "partition": number, "bucket_type": "default", "index": number, "leader": "east-1", "replicas": nodes,
        "isr": nodes, "leo": 1_234_567, "hw": 1_234_567, "applied": 1_234_567, "lag": 0, "status": "online",
        "reason": "all in sync", **changed,
    }  # fmt: skip


def test_one_partition_is_shown_with_its_replicas(
    east: FakeAdminListener, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The row of the listing, what the listing leaves out, and a row for each replica; null facts are unknown."""
    facts = ("role", "epoch", "gen", "leo", "durable", "hw", "applied", "lag")
    led = dict(zip(facts, ("leader", 6, 11, 9, 9, 9, 9, 0), strict=True))
    replicas = [
        {"node": "east-1", **led, "in_sync": True, "reason": "serving"},
        {"node": "east-2", **dict.fromkeys(facts), "in_sync": False, "reason": "the node is gone"},
    ]
    row = partition_row(7, epoch=6, min_isr=2, elr=[], adding=[], removing=[], replica_states=replicas)
    east.respond("/admin/partitions/7", row)
    out = shown("partition", "show", "7", width=80, monkeypatch=monkeypatch, capsys=capsys)
    lines = [line.split() for line in out.splitlines()]
    assert max(map(len, out.splitlines())) <= 80
    assert ["epoch:", "6"] in lines
    assert ["east-1", "leader", "6", "9", "9", "0", "yes", "serving"] in lines
    assert ["east-2", "unknown", "unknown", "unknown", "unknown", "unknown", "no", "the", "node", "is", "gone"] in lines
    wide = shown("partition", "show", "7", "-o", "wide", width=80, monkeypatch=monkeypatch, capsys=capsys)
    assert "DURABLE" in wide


def respond_with_tables(east: FakeAdminListener) -> None:
    """Let the listener answer with states of all kinds."""
    answer = cluster_answers.cluster_answer("east")
    answer["nodes"][2]["state"] = "gone"
    east.respond("/admin/cluster", answer)
    out = "east-3 is out of sync: the node is gone"
    rows = [partition_row(0), partition_row(1, isr=["east-1", "east-2"], reason=out)]
    east.respond("/admin/partitions", {"partitions": rows})
    reason = "properties differ from the source's: bucket type default: allow_mult"
    east.respond("/admin/sink/nodes", sinks_answer("east", reason=reason))
    options = [
        option_row("replication.max.time.lag.millis"),
        option_row("replication.min.isr", default="RF - 1", set=1, effective=1, by="ann@ops", at_ms=NOW_MS),
    ]
    east.respond("/admin/options", {"options": options})
    held = {"what": "serving", "node": None, "by": "ann@ops", "at_ms": NOW_MS, "reason": "disk swap"}
    queues = [
        {
            "node": f"east-{number}",
            "gone": False,
            "queues": [
                queue_row("east", f"east-{number}")
                | {"serving": "suspended", "suspended": held, "reason": "serving suspended: disk swap", "waiting": 15}
            ],
        }
        for number in (1, 2)
    ]
    east.respond("/admin/queues/nodes", {"nodes": queues})
    lag = cluster_answers.lag_answer("east")
    lag["lag"][0] |= {"seconds": 65.7, "objects": 15, "bytes": 4_000, "reason": "serving suspended: disk swap"}
    east.respond("/admin/lag", lag)


GOLDEN: Final = {
    ("cluster", "status"): """\
cluster: east
uuid: eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee
state: online
answered by: east-1
version: 0.1.0
controller: east-2
metastore: connected, read 2026-02-02 02:40:00Z
partitions: 12 of 12 online
under-replicated: -
below min-ISR: -

NODE    ID  RACK  STATE   LEADERS  REPLICAS  IN SYNC  HTTP         ADMIN
east-1  0   a     \u2713 live  4        12        12       east-1:8098  east-1:8099
east-2  1   a     \u2713 live  4        12        12       east-2:8098  east-2:8099
east-3  2   a     \u2717 gone  4        12        12       east-3:8098  east-3:8099
-o wide has more: DRAINED, CLUSTER

ACTOR   STATE      REASON
source  \u2713 running  -
""",
    ("partition", "list"): """\
PARTITION  LEADER  ISR                     STATUS    REASON
0          east-1  east-1, east-2, east-3  \u2713 online  all in sync
1          east-1  east-1, east-2          \u2713 online  east-3 is out of sync: the
                                                     node is gone
-o wide has more: TYPE/INDEX, REPLICAS, LEO, HW, APPLY, LAG
""",
    ("sink", "list"): """\
NODE    QUEUE    PEER         STATE      LAG P50  REASON
east-1  to-east  west-1:8098  \u2713 running  12.5 ms  properties differ from the
                                                  source's: bucket type default:
                                                  allow_mult
east-2  to-east  west-1:8098  \u2713 running  12.5 ms  properties differ from the
                                                  source's: bucket type default:
                                                  allow_mult
east-3  to-east  west-1:8098  \u2713 running  12.5 ms  properties differ from the
                                                  source's: bucket type default:
                                                  allow_mult
-o wide has more: KIND, FROM, DELAY, APPLIED, SUPERSEDED, MERGED, REJECTED, ...
""",
    ("option", "list"): """\
OPTION                           FOR      DEFAULT  SET  EFFECTIVE  FROM
replication.max.time.lag.millis  cluster  3s       -    3s         default
replication.min.isr              cluster  RF - 1   1    1          default
-o wide has more: BY, WHEN
""",
    ("queue", "list"): """\
NODE    QUEUE    OWNER  WAITING  OLDEST   SERVING      REASON
east-1  to-west  west   15       unknown  ! suspended  serving suspended: disk
                                                       swap (by ann@ops,
                                                       2026-02-02 02:40:00Z)
east-2  to-west  west   15       unknown  ! suspended  serving suspended: disk
                                                       swap (by ann@ops,
                                                       2026-02-02 02:40:00Z)
-o wide has more: FILTER, REPAIRS, IN FLIGHT, PUBLISHING
""",
    ("lag",): """\
CLUSTER  QUEUE    TYPE     SECONDS  OBJECTS  BYTES  REASON
west     to-west  default  65.7     15       4000   serving suspended: disk swap
-o wide has more: PROVEN AS OF
""",
}


@pytest.mark.parametrize("words", list(GOLDEN), ids=" ".join)
def test_a_listing_fits_80_columns(
    words: tuple[str, ...],
    east: FakeAdminListener,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No line is longer, no word is broken, the important columns stay, and hidden ones are named."""
    respond_with_tables(east)
    out = shown(*words, width=80, monkeypatch=monkeypatch, capsys=capsys)
    print(out)
    assert max(map(len, out.splitlines())) <= 80
    assert out == GOLDEN[words]


def test_wide_and_a_pipe_have_every_column(
    east: FakeAdminListener, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """-o wide has all columns and whole addresses on any terminal; a pipe gets the same, one line per row, without
    marks."""
    respond_with_tables(east)
    main(["sink", "list"])
    piped = capsys.readouterr().out
    assert "LAG P99  REASON" in piped
    assert "http://west-1.data-centre.example.com:8098  cluster  config  running  0.0 ms" in piped
    assert len(piped.splitlines()) == 4
    wide = shown("sink", "list", "-o", "wide", width=80, monkeypatch=monkeypatch, capsys=capsys)
    assert "LAST ERROR" in wide
    assert "http://west-1.data-centre.example.com:8098" in wide
    assert "has more" not in wide


def test_states_are_coloured_and_heads_bold(
    east: FakeAdminListener, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a terminal without NO_COLOR good states are green and bad ones red; a dumb terminal and a pipe get no
    colours."""
    respond_with_tables(east)
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "xterm-256color")
    main(["cluster", "status"])
    assert "\x1b" not in capsys.readouterr().out
    out = shown("cluster", "status", width=80, monkeypatch=monkeypatch, capsys=capsys)
    assert "\x1b[1mNODE" in out
    assert "\x1b[32m\u2713 live" in out
    assert "\x1b[31m\u2717 gone" in out
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in shown("cluster", "status", width=80, monkeypatch=monkeypatch, capsys=capsys)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in shown("cluster", "status", width=80, monkeypatch=monkeypatch, capsys=capsys)


def test_a_terminal_without_unicode_gets_ascii_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mark that standard output cannot write would end the command."""
    monkeypatch.setattr(output.sys, "stdout", type("Ascii", (), {"encoding": "ascii", "isatty": lambda _: False})())
    lines = table_lines((column("state", state=True),), [["live"], ["gone"]], 80, wide=False, marks=True)
    assert lines == ["STATE", "+ live", "x gone"]


def test_columns_are_left_out_in_their_order_and_come_back_where_they_fit() -> None:
    """First those with nothing but zeros, then by their number; one that fits after all stays."""
    columns = [column("a"), column("b", leave=1), column("c", leave=2), column("d", leave=3)]
    row = ["aaaa", "0", "cccccccc", "dd"]

    def heads(width: int) -> list[str]:
        return table_lines(columns, [row], width, wide=False, marks=False, hint=False)[0].split()

    assert heads(21) == ["A", "B", "C", "D"]
    assert heads(19) == ["A", "C", "D"]
    assert heads(14) == ["A", "C"]
    assert heads(11) == ["A", "B", "D"]
    assert heads(4) == ["A"]


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("http://west-1.example.com:8098", "west-1:8098"),
        ("https://west-1:8098", "west-1:8098"),
        ("west-1.example.com:8097", "west-1:8097"),
        ("http://10.0.0.1:8098", "10.0.0.1:8098"),
        ("http://[::1]:8098", "[::1]:8098"),
        ("http://a:port", "http://a:port"),
        ("unknown", "unknown"),
        ("-", "-"),
    ],
)
def test_an_address_loses_scheme_and_domain(text: str, short: str) -> None:
    """An address without a port stays unchanged."""
    assert short_host(text) == short


def test_every_column_is_a_declaration() -> None:
    """A plain name and a pair are columns that stay on every terminal."""
    table = output.TableSpec("in_sync", ("node", "name"), column("id", leave=3))
    assert table.columns == (
        Column("in sync", "in_sync"),
        Column("node", "name"),
        Column("id", "id", leave=3),
    )
    assert table.headings == ("in sync", "node", "id")
