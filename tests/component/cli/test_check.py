"""`isthmus check lag|isr|sync|gaps`: the line and the exit code for a monitor."""

from __future__ import annotations

import json
from typing import Any

import pytest

from isthmus.node.cli import main as cli
from tests.support.fake_admin_listener import FakeAdminListener

OK, WARNING, CRITICAL, UNKNOWN = 0, 1, 2, 3
HOUR_MS = 3_600_000

CLUSTER: dict[str, Any] = {
    "node": "east-1", "metastore": "connected", "read_at_ms": 5, "waiting": "", "problems": [], "silent": [],
    "partitions": {"total": 12, "online": 12, "election": 0, "candidate_found": 0, "offline": 0},
    "replicas": {"total": 36, "in_sync": 36}, "under_replicated": [], "below_min_isr": [],
    "nodes": [{"name": "east-1", "state": "live", "replicas": 12, "drained": False}],
}  # fmt: skip
LAG: dict[str, Any] = {"queue": "to-west", "bucket_type": "default", "seconds": 0.2, "objects": 3, "reason": ""}


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on standard output; nothing else is printed."""
    shown = capsys.readouterr()
    assert shown.err == ""
    assert shown.out.count("\n") == 1
    return shown.out.rstrip("\n")


def test_lag_is_judged_by_its_worst_row(listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]) -> None:
    """Lag counts above a limit, not at it; late rows outweigh unknown ones, and these outweigh good ones; each is
    listed, the worst first."""
    listener.respond("/admin/cluster", CLUSTER)

    def lag(*seconds: float | None, options: tuple[str, ...] = ()) -> tuple[int, str]:
        rows = [{**LAG, "queue": f"q{n}", "seconds": one, "reason": "why"} for n, one in enumerate(seconds)]
        listener.respond("/admin/lag", {"lag": rows, "at_ms": 9})
        return cli.main(["check", "lag", *options]), printed(capsys)

    assert lag(0.2) == (OK, "LAG OK: queue q0, bucket type default: 200.0 ms behind, keys that wait: 3 (why)")
    assert lag(30)[0] == lag(0.2, 30)[0] == OK
    assert lag(31)[0] == WARNING
    assert lag(301)[0] == CRITICAL
    assert lag(None)[0] == lag(0.2, None)[0] == UNKNOWN
    assert (lag(None, 31)[0], lag(None, 301, 0)[0]) == (WARNING, CRITICAL)
    line = lag(0.2, None, 31, 301, 302, 303)[1]
    assert line.startswith("LAG CRITICAL: queue q3, bucket type default: 5.0 min behind")
    assert line.endswith("; and 2 more")
    line = lag(0.2, None, 31)[1]
    assert line.index("q2") < line.index("q1") < line.index("q0")
    assert "q1, bucket type default: how far it is behind is not known (why)" in line
    assert lag(31, options=("-w", "40"))[0] == lag(31, options=("--warning", "1m"))[0] == OK
    assert lag(31, 0, options=("--queue", "q1"))[0] == OK
    assert lag(31, 0, options=("-c", "30s"))[0] == CRITICAL
    assert lag(0.2, options=("--queue", "q7"))[0] == UNKNOWN
    assert lag()[0] == UNKNOWN


def test_the_known_part_of_an_unknown_lag_is_judged(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where it is late it is no less a problem than a lag that is known; where it is not, the lag is unknown."""
    listener.respond("/admin/cluster", CLUSTER)

    def lag(least: float | None) -> tuple[int, str]:
        row = {**LAG, "seconds": None, "objects": None, "at_least_s": least, "reason": "node east-2 does not answer"}
        listener.respond("/admin/lag", {"lag": [row], "at_ms": 9})
        return cli.main(["check", "lag"]), printed(capsys)

    unknown = "LAG UNKNOWN: queue to-west, bucket type default: how far it is behind is not known"
    for least in (None, 0.0, 30.0):
        assert lag(least) == (UNKNOWN, f"{unknown} (node east-2 does not answer)")
    late = "queue to-west, bucket type default: at least 40.0 s behind, more is not known"
    assert lag(40.0) == (WARNING, f"LAG WARNING: {late} (node east-2 does not answer)")
    assert lag(400.0)[0] == CRITICAL


def test_a_bar_or_a_line_in_a_reason_stays_in_the_line(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """Monitors parse the text after a bar as numbers, and read only the first line."""
    listener.respond("/admin/cluster", CLUSTER)
    listener.respond("/admin/lag", {"lag": [{**LAG, "reason": "suspended by ann: a|b\nc"}]})
    assert cli.main(["check", "lag"]) == OK
    assert printed(capsys).endswith("(suspended by ann: a/b\\nc)")


@pytest.mark.parametrize("probe", ["lag", "isr", "sync", "gaps"])
def test_a_node_without_its_metastore_counts_as_unknown(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str], probe: str
) -> None:
    """A node without its metastore may show old data, so the check is unknown, however good it looks; so is an answer
    without the needed fields, as from another version."""
    listener.respond("/admin/lag", {"lag": [LAG]})
    listener.respond("/admin/gaps", {"gaps": [], "unknown": [], "unknown_partitions": {}, "at_ms": 9})
    listener.respond("/admin/fullsync/nodes", {"nodes": {"east-1": checks()}, "at_ms": 2 * HOUR_MS})
    listener.respond("/admin/cluster", CLUSTER)
    assert cli.main(["check", probe]) == OK
    printed(capsys)
    for blind in ({"metastore": "suspended"}, {"read_at_ms": None}):
        listener.respond("/admin/cluster", {**CLUSTER, **blind})
        assert cli.main(["check", probe]) == UNKNOWN
        assert "metastore" in printed(capsys)
    listener.respond("/admin/cluster", {**CLUSTER, "registered": False, "reason": "another process has the name"})
    assert cli.main(["check", probe]) == UNKNOWN
    assert "is not registered and takes no part: another process has the name" in printed(capsys)
    listener.respond("/admin/cluster", {"metastore": "connected", "read_at_ms": 5})
    for path in ("/admin/lag", "/admin/gaps", "/admin/fullsync/nodes"):
        listener.respond(path, {})
    assert cli.main(["check", probe]) == UNKNOWN
    printed(capsys)


def test_replicas_out_of_sync_are_a_warning_and_lost_writes_critical(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """Missing replicas or nodes, or other problems, are a warning; partitions that take no writes are critical; a live
    node that did not answer makes the check unknown. Each is named, and limits are counts of partitions."""

    def isr(*options: str, **changed: Any) -> tuple[int, str]:
        listener.respond("/admin/cluster", {**CLUSTER, **changed})
        return cli.main(["check", "isr", *options]), printed(capsys)

    assert isr() == (OK, "ISR OK: 12 of 12 partitions online, 36 of 36 replicas in sync, 1 node live")
    gone = {"name": "east-2", "state": "gone", "replicas": 12, "drained": False}
    under = {"under_replicated": [3, 4], "nodes": [*CLUSTER["nodes"], gone]}
    assert isr(**under) == (WARNING, "ISR WARNING: 2 of 12 partitions lack replicas in sync: 3, 4; node east-2 is gone")
    assert isr("-w", "1", **under)[0] == WARNING
    assert isr("-w", "2", **under)[0] == OK
    assert isr(nodes=[gone])[0] == WARNING
    assert isr(nodes=[{**gone, "replicas": 0, "drained": True}])[0] == OK
    code, line = isr(below_min_isr=[3], **under)
    assert (code, line[:80]) == (
        CRITICAL,
        "ISR CRITICAL: too few replicas are in sync to take writes (min-ISR) in partition",
    )
    assert isr("-c", "1", below_min_isr=[3], **under)[0] == WARNING
    stopped = {**CLUSTER["partitions"], "online": 10, "election": 2}
    assert isr(partitions=stopped) == (CRITICAL, "ISR CRITICAL: 2 of 12 partitions are not online: 2 election")
    assert isr(waiting="waits for 2 more nodes", partitions={**stopped, "total": 0, "online": 0})[0] == CRITICAL
    assert isr(partitions={"total": 0, "online": 0})[0] == UNKNOWN
    assert isr(silent=["east-3"]) == (UNKNOWN, "ISR UNKNOWN: node east-3 lives and did not answer")
    assert isr(silent=["east-3"], **under)[0] == WARNING
    full = "node east-1, 2 partitions: 3, 4: out-of-storage: writes are refused, the log's disk is full"
    refused = {"east-1": [full]}
    assert isr(problems=[full], writes_refused=refused) == (CRITICAL, f"ISR CRITICAL: {full}")
    code, line = isr(problems=["partition 3 is offline: why", full], writes_refused=refused, **under)
    assert (code, full in line, "why" in line) == (CRITICAL, True, False)


def check(verdict: str, began_ms: int, **changed: Any) -> dict[str, Any]:
    """The result of a check."""
    return {"verdict": verdict, "began_ms": began_ms, "queued": 0, "left": 0, "reason": "", **changed}


def checks(proven_ms: int | None = HOUR_MS, newest: Any = None, looked: Any = None, **changed: Any) -> dict[str, Any]:
    """A node's answer about its checks of one bucket type."""
    peer = {"name": "west", "queue": "to-west", "bucket_types": ["default"], "state": "scheduled", "reason": "",
            "queue_delisted": False, "proven_ms": {"default": proven_ms}, "newest": {"default": newest or looked},
            "newest_looked": {"default": looked}, **changed}  # fmt: skip
    return {"peers": [peer]}


def test_a_node_that_is_down_is_no_doubt_once_others_have_proven_later(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dead node's findings are unknown until everything that the others compare is proven by checks that began after
    its end; a live node that does not answer stays unknown."""
    listener.respond("/admin/cluster", CLUSTER)

    def sync(gone: Any, *proven_ms: int | None) -> int:
        peers = [checks(at, queue=f"q{number}")["peers"][0] for number, at in enumerate(proven_ms)]
        nodes = {"e1": {"peers": peers}, "e2": None}
        listener.respond("/admin/fullsync/nodes", {"nodes": nodes, "at_ms": 2 * HOUR_MS, "gone": gone})
        return cli.main(["check", "sync"])

    died_ms = HOUR_MS - 60_000
    assert sync({"e2": died_ms}, HOUR_MS, HOUR_MS) == OK
    assert sync({"e2": died_ms}, HOUR_MS, died_ms + 1_000) == UNKNOWN, "too near to be told apart by two clocks"
    assert sync({"e2": died_ms}, HOUR_MS, None) == UNKNOWN
    assert sync({"e2": died_ms}) == UNKNOWN
    assert sync({}, HOUR_MS) == sync(None, HOUR_MS) == UNKNOWN
    capsys.readouterr()
    sync({"e2": died_ms}, HOUR_MS)
    assert "node e2 is down for 61" in capsys.readouterr().out


def test_a_proof_is_judged_by_its_age_and_by_what_was_found_since(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """The newest proof of any node counts, and the newest completed check: differences that it queued are a warning,
    differences that it left are critical. No proof, or a silent node, is unknown; a check that could not compare is
    reported beside the proof."""
    listener.respond("/admin/cluster", CLUSTER)

    def sync(*options: str, hour: int = 2, **nodes: Any) -> tuple[int, str]:
        listener.respond("/admin/fullsync/nodes", {"nodes": nodes, "at_ms": hour * HOUR_MS})
        return cli.main(["check", "sync", *options]), printed(capsys)

    fine = "SYNC OK: west, bucket type default (queue to-west): proven up to date 60.0 min ago"
    assert sync(e1=checks(), e2=checks(None), e3={"peers": []}) == (OK, fine)
    assert [sync(hour=hour, e1=checks())[0] for hour in (27, 28, 51, 52)] == [OK, WARNING, WARNING, CRITICAL]
    assert sync("-w", "30m", "-c", "50m", e1=checks())[0] == CRITICAL
    code, line = sync(e1=checks(), e2=None)
    assert (code, line.split(";")[0]) == (
        UNKNOWN,
        "SYNC UNKNOWN: node e2 does not answer: what its checks found is not known",
    )
    assert sync(e1={"peers": []})[0] == sync()[0] == sync(e1=checks(None))[0] == UNKNOWN
    assert "isthmus fullsync run all --wait compares now" in sync(e1=checks(None))[1], "a new pair has its next step"
    later, before = 2 * HOUR_MS, HOUR_MS // 2
    repaired, differing = check("repaired", later, queued=7), check("differing", later, left=2)
    assert sync(e1=checks(), e2=checks(None, looked=repaired))[0] == WARNING
    code, line = sync(e1=checks(None, looked=differing))
    assert (code, "0 keys queued, 2 not; never proven up to date" in line) == (CRITICAL, True)
    assert sync(e1=checks(looked=check("differing", before)))[0] == OK, "proven since"
    assert sync(e1=checks(None, looked=differing), e2=checks(later + 1))[0] == OK, "proven since by another node"
    assert sync(hour=60, e1=checks(looked=repaired))[0] == CRITICAL, "queued, and not proven for too long"
    blind = check("incomplete", later, reason="a tree is built")
    code, line = sync(e1=checks(newest=blind, looked=check("in-sync", HOUR_MS)))
    assert (code, "could not look: a tree is built" in line) == (OK, True)
    assert sync(e1=checks(newest=blind, looked=differing))[0] == CRITICAL, "an end without a look mends nothing"
    assert "(e1 is suspended: by ann: moving)" in sync(e1=checks(state="suspended", reason="by ann: moving"))[1]
    ahead = check("differing", later, left=2, reason="2 are ahead there")
    assert "differing at node e1 (2 are ahead there): 0 keys queued, 2 not" in sync(e1=checks(looked=ahead))[1]
    other = {"peers": [*checks(None)["peers"], *checks(queue="to-north", bucket_types=["default"])["peers"]]}
    assert (sync(e1=other)[0], sync("--queue", "to-north", e1=other)[0]) == (UNKNOWN, OK)
    assert sync("--queue", "to-nroth", e1=other)[0] == UNKNOWN


def test_keys_of_the_sinks_own_matter_only_where_both_are_to_be_equal(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """One-way, a check that found all of ours there is a proof, whatever else the sink has. Where both directions are
    configured for this bucket type, only equality is: until the other side's keys are here, it is a warning, and an
    old equality counts by its age. A node of an earlier version proves nothing but equality, or tells no bucket types
    apart."""
    listener.respond("/admin/cluster", CLUSTER)
    reason = "all of ours is there; only there or newer there: 2 keys"
    newest = check("up-to-date", 2 * HOUR_MS, reason=reason)

    def sync(hour: int = 2, **changed: Any) -> tuple[int, str]:
        nodes = {"e1": checks(2 * HOUR_MS, looked=newest, **changed)}
        listener.respond("/admin/fullsync/nodes", {"nodes": nodes, "at_ms": hour * HOUR_MS})
        return cli.main(["check", "sync"]), printed(capsys)

    where = "west, bucket type default (queue to-west)"
    never = {"equal_ms": {"default": None}}
    assert sync(both_ways=False, **never) == (OK, f"SYNC OK: {where}: proven up to date 0.0 ms ago")
    code, line = sync(both_ways=True, **never)
    assert (code, reason in line, line.endswith("never proven equal")) == (WARNING, True, True)
    before = {"equal_ms": {"default": HOUR_MS}}
    code, line = sync(both_ways=True, **before)
    assert (code, line.endswith("proven equal 60.0 min ago")) == (WARNING, True)
    assert sync(hour=60, both_ways=True, **before)[0] == CRITICAL
    assert sync(both_ways=True, equal_types=["other"], **never)[0] == OK
    assert sync(both_ways=True, equal_types=["default", "other"], **never)[0] == WARNING
    newest = check("in-sync", 2 * HOUR_MS)
    assert sync(both_ways=True) == (OK, f"SYNC OK: {where}: proven equal 0.0 ms ago"), "of an earlier version"


def test_a_proof_from_the_future_has_no_age(listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]) -> None:
    """A node whose clock is ten minutes ahead has made the only proof: how old it is is not known, and the word is
    unknown, not 0.0 ms. Beside a proof of a node with the right clock it does not count, nor does its newest result."""
    listener.respond("/admin/cluster", CLUSTER)
    wrong = checks(2 * HOUR_MS + 600_000, looked=check("in-sync", 2 * HOUR_MS + 600_000))

    def sync(**nodes: Any) -> tuple[int, str]:
        listener.respond("/admin/fullsync/nodes", {"nodes": nodes, "at_ms": 2 * HOUR_MS})
        return cli.main(["check", "sync"]), printed(capsys)

    code, line = sync(e1=wrong)
    assert (code, "10.0 min ahead of this node's clock: when is not known" in line) == (UNKNOWN, True)
    assert sync(e1=wrong, e2=checks())[1].endswith("proven up to date 60.0 min ago")
    differing = check("differing", 2 * HOUR_MS - 1, left=2)
    assert sync(e1=wrong, e2=checks(looked=differing))[0] == CRITICAL


def test_gaps_are_judged_by_the_age_of_what_was_given_up(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """Any open gap is a warning, also one that a clock which was ahead has dated in the future; one that full-sync does
    not close in time is critical; where a partition's gaps are unknown the check is unknown, although no gap is
    listed."""
    listener.respond("/admin/cluster", CLUSTER)
    gap = {"queue": "to-west", "from_ms": HOUR_MS, "upto_ms": HOUR_MS + 9}

    def gaps(*rows: dict[str, Any], hour: int = 2, options: tuple[str, ...] = (), **changed: Any) -> tuple[int, str]:
        answer = {"gaps": rows, "unknown": [], "unknown_partitions": {}, "at_ms": hour * HOUR_MS, **changed}
        path = "/admin/gaps" + ("?queue=to%2Fwest" if "--queue" in options else "")
        listener.respond(path, answer)
        return cli.main(["check", "gaps", *options]), printed(capsys)

    assert gaps() == (OK, "GAPS OK: nothing was given up that is not proven yet")
    grows = {**gap, "upto_ms": None}
    line = "GAPS WARNING: queue to-west: 2 gaps not proven yet, the oldest of 60.0 min ago, 1 still growing"
    assert gaps(gap, grows) == (WARNING, line)
    assert gaps(gap, hour=4)[0] == CRITICAL
    assert gaps(gap, options=("-w", "1h"))[0] == OK
    assert gaps({**gap, "from_ms": 0})[0] == WARNING
    assert gaps({**gap, "from_ms": 0}, gap, options=("-w", "1h"))[0] == WARNING, "one may be as old as can be"
    line = "GAPS WARNING: queue to-west: 1 gap not proven yet, since when is not known"
    assert gaps({**gap, "from_ms": 3 * HOUR_MS}) == (WARNING, line)
    assert gaps(unknown=["east-3"])[0] == UNKNOWN
    assert gaps(unknown_partitions={"to-west": [3, 4]}) == (
        UNKNOWN, "GAPS UNKNOWN: queue to-west: gaps of 2 partitions: 3, 4 are not known")  # fmt: skip
    assert gaps(gap, unknown=["east-3"])[0] == WARNING
    assert gaps(options=("--queue", "to/west"))[0] == OK


def test_clocks_are_judged_by_how_far_they_differ(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """Above a second a warning, above a minute critical, or as the options say; a node that does not answer, or does
    not measure, is unknown."""
    listener.respond("/admin/cluster", CLUSTER)

    def node(*offsets: float) -> dict[str, Any]:
        rows = [{"node": f"n{number}", "offset_ms": ms, "bound_ms": 0.5} for number, ms in enumerate(offsets)]
        return {"clocks": {"nodes": rows, "peers": []}}

    def clocks(*options: str, **nodes: Any) -> tuple[int, str]:
        listener.respond("/admin/nodes/health", {"nodes": nodes, "unknown": {"e2": "it is away"}, "at_ms": HOUR_MS})
        return cli.main(["check", "clocks", *options]), printed(capsys)

    assert clocks(e1=node(3, -20)) == (OK, "CLOCKS OK: 2 clocks are at most 19.5 ms apart")
    assert clocks(e1=node()) == (OK, "CLOCKS OK: no other clock is known here: no other node, and no link has answered")
    assert clocks(e1=node(1_500.5)) == (
        WARNING,
        "CLOCKS WARNING: node n0: its clock is 1.5 s ahead of the one of node e1",
    )
    assert clocks("-w", "2s", e1=node(1_500))[0] == OK
    assert clocks(e1=node(-61_000))[0] == CRITICAL
    assert clocks(e1=node(3), e2=None)[0] == UNKNOWN
    assert clocks(e1=node(3), e3={})[0] == UNKNOWN


@pytest.mark.parametrize(
    ("words", "start"),
    [
        ([], "CHECK UNKNOWN: name a check: lag, isr, sync, gaps, clocks, sink"),
        (["lgg"], "CHECK UNKNOWN: No such command 'lgg'"),
        (["--bogus", "lag"], "CHECK UNKNOWN: No such option"),
        (["lag", "-w", "3x"], "LAG UNKNOWN: Invalid value for '-w'"),
        (["lag", "-w", "nan"], "LAG UNKNOWN: Invalid value for '-w'"),
        (["sync", "-w", "2h", "-c", "1h"], "SYNC UNKNOWN: --critical 1h is below --warning 2h"),
        (["isr", "-c", "-1"], "ISR UNKNOWN: Invalid value for '-c'"),
        (["gaps", "--queue", ""], "GAPS UNKNOWN: Invalid value for '--queue'"),
        (["lag", "more"], "LAG UNKNOWN: Got unexpected extra argument"),
        (["lag", "--admin", "here"], 'LAG UNKNOWN: --admin: "here" is not the URL of a node'),
        (["lag", "--admin", "http://127.0.0.1:1"], "LAG UNKNOWN: http://127.0.0.1:1 does not answer"),
        (["isr"], "ISR UNKNOWN: no such queue"),
        (["isr", "--token-file", "/not/there"], "ISR UNKNOWN: /not/there"),
    ],
)
@pytest.mark.usefixtures("listener")
def test_a_probe_that_cannot_ask_is_unknown(words: list[str], start: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A usage error, a node that is away and a refusal: a line on standard output and code 3, never a code that
    describes the cluster."""
    assert cli.main(["check", *words]) == UNKNOWN
    assert printed(capsys).startswith(start)


def test_programs_get_all_facts_and_cron_gets_no_good_news(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """JSON has state, code, limits with their unit, and every fact; also for a failure. `--quiet` prints nothing while
    the check is ok, and only then."""
    listener.respond("/admin/cluster", CLUSTER)
    listener.respond("/admin/lag", {"lag": [{**LAG, "queue": f"q{n}"} for n in range(9)]})
    assert cli.main(["check", "lag", "-o", "json", "-w", "1.5"]) == OK
    answer = json.loads(capsys.readouterr().out)
    assert (answer["check"], answer["state"], answer["code"], len(answer["facts"])) == ("lag", "ok", 0, 9)
    assert answer["limits"] == {"warning_ms": 1_500, "critical_ms": 300_000}
    assert cli.main(["check", "isr", "-o", "json", "-w", "1"]) == OK
    assert json.loads(capsys.readouterr().out)["limits"] == {"warning_count": 1, "critical_count": 0}
    assert cli.main(["check", "sync", "-o", "json"]) == UNKNOWN
    answer = json.loads(capsys.readouterr().out)
    assert (answer["state"], answer["limits"], answer["facts"][0]["sentence"]) == ("unknown", None, "no such queue")
    assert cli.main(["check", "lag", "--quiet"]) == OK
    assert capsys.readouterr().out == ""
    assert cli.main(["check", "sync", "--quiet"]) == UNKNOWN
    assert printed(capsys)


def test_a_queue_without_full_sync_is_a_warning(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """A real-time queue with a separate repair queue is covered by that queue's checks; a bucket type that a queue
    sends and no node's checks compare is a warning, and so is one that the other cluster lacks."""
    listener.respond("/admin/cluster", CLUSTER)

    def sync(*options: str, **nodes: Any) -> tuple[int, str]:
        listener.respond("/admin/fullsync/nodes", {"nodes": nodes, "at_ms": 2 * HOUR_MS})
        return cli.main(["check", "sync", *options]), printed(capsys)

    def sent(*types: str) -> list[dict[str, Any]]:
        return [{"queue": "rt", "cluster": "west", "uuid": "b0", "bucket_types": types}]

    by_both = {"compares": {"rt": ["default"], "to-west": ["default"]}}
    fine = {**checks(**by_both), "sent": sent("default")}
    assert sync(e1=fine)[0] == sync("--queue", "rt", e1=fine)[0] == OK
    more = {**checks(**by_both), "sent": sent("default", "orders")}
    words = "queue rt sends bucket type orders to west, and no full-sync compares it"
    for options in ((), ("--queue", "rt")):
        code, line = sync(*options, e1=more)
        assert (code, line.split(";")[0]) == (WARNING, f"SYNC WARNING: {words}")
    assert sync("--queue", "to-west", e1=more)[0] == OK
    assert sync(e1=more, e2=None)[0] == UNKNOWN, "the node that does not answer may compare it"
    lacking = check("error", HOUR_MS, lacking=True, reason="no such bucket type")
    code, line = sync(e1=checks(None, newest=lacking, cluster="west"))
    assert (code, "west has no such bucket type: its changes are held back" in line) == (WARNING, True)
    assert "isthmus bucket-type create default" in line


def test_dead_letters_lacking_types_and_failing_links_alarm(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """Dead letters of all nodes are counted together; a bucket type that is lacking here, and a link that fails, are
    warnings; a node that does not answer, or cannot count, is unknown."""
    listener.respond("/admin/cluster", CLUSTER)

    def sink(*options: str, **nodes: Any) -> tuple[int, str]:
        rows = [{"node": name, "sink": said} for name, said in nodes.items()]
        listener.respond("/admin/sink/nodes", {"nodes": rows})
        return cli.main(["check", "sink", *options]), printed(capsys)

    def node(kept: int | None, **link: Any) -> dict[str, Any]:
        row = {"state": "running", "reason": "", "held_types": [], "source_cluster": "east", **link}
        return {"dead_letters": {"kept": kept, "given_up": 0}, "sinks": [row]}

    assert sink(w1=node(0)) == (OK, "SINK OK: no dead letters, no bucket type is lacking, no link fails")
    words = "dead letters: 60 at w1, 50 at w2 (isthmus sink dead-letters list)"
    assert sink(w1=node(60), w2=node(50)) == (CRITICAL, f"SINK CRITICAL: {words}")
    assert sink(w1=node(60), w2=node(0))[0] == WARNING
    assert sink("-w", "60", w1=node(60))[0] == OK
    code, line = sink(w1=node(0, held_types=["orders"], state="holding"))
    assert (code, "bucket type orders of east is lacking here" in line) == (WARNING, True)
    assert sink(w1=node(0, state="failing", reason="no answer"))[0] == WARNING
    assert sink(w1=node(0), w2=None)[0] == sink(w1=node(None))[0] == UNKNOWN
    assert sink("-w", "9", "-c", "5", w1=node(0))[0] == UNKNOWN
