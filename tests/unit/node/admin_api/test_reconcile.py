"""Runs on Spark in the admin API: any node answers for all, and names the nodes without an answer."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from isthmus.aae.run_directory import RunDirectory
from isthmus.node.admin_api.reconcile import ReconcileAdmin
from isthmus.node.services.cluster_query import ClusterQuery
from isthmus.node.services.run_query import RUN, RUNS, RunReader, RunResponder, RunsResponder
from isthmus.repl.clock import SystemTime
from tests.unit.node.admin_api.test_fullsync import Wires


def query_of(node: str, directory: Path | None, others: dict[str, ClusterQuery]) -> ClusterQuery:
    """The queries of a node with this directory of runs."""
    query = ClusterQuery(node, Wires(others))
    reader = RunReader(directory, SystemTime())
    query.serve(RUNS, RunsResponder(reader))
    query.serve(RUN, RunResponder(reader))
    return query


async def test_runs_of_all_nodes_are_listed_and_one_is_shown(
    client_api: Any, send_request: Any, tmp_path: Path
) -> None:
    """The queried node has no directory, another one has: its runs are listed with the node, its path, and the nodes
    that are unknown. A run of any node is shown; a run id of bytes, HTML or another kind is not found."""
    RunDirectory(str(tmp_path), "may").write("run.json", {"bucket_type": "<b>"})
    other = query_of("n2", tmp_path, {})
    broken = query_of("n3", tmp_path / "gone", {})
    query = query_of("n1", None, {"n2": other, "n3": broken})
    live = {"n1", "n2", "n3"}
    members = SimpleNamespace(live_nodes=lambda: live, known_nodes=lambda: live | {"n4"})
    services: Any = SimpleNamespace(query=query, membership=members, time=SystemTime())
    ReconcileAdmin(services, client_api.app.router)

    async def get(path: str) -> tuple[int, Any]:
        answer = await send_request(client_api.app, "GET", f"/admin/reconcile/runs{path}", b"")
        return answer.status, json.loads(answer.body) if answer.status == 200 else answer.body.decode()

    status, found = await get("")
    assert status == 200
    assert [(row["run"], row["state"], row["bucket_type"], row["nodes"]) for row in found["runs"]] == [
        ("may", "unknown", "<b>", ["n2"])
    ]
    assert found["directories"] == {"n1": None, "n2": str(tmp_path)}
    assert sorted(found["unknown"]) == ["n3", "n4"]
    assert "gone cannot be read: No such file" in found["unknown"]["n3"]
    status, shown = await get("/comparison/may")
    assert (status, shown["node"], shown["options"]["bucket_type"]) == (200, "n2", "<b>")
    assert (await get("/comparison/may?node=n2"))[0] == 200
    for path, status, words in (
        ("/comparison/may?node=n1", 404, "no node sees a comparison 'may'"),
        ("/comparison/june?node=n4", 503, "n4: the node is not registered"),
        ("/comparison/may?node=n9", 404, "there is no node 'n9'"),
        ("/export/may", 404, "kinds of runs are comparison, seed, import"),
        ("/comparison/..%2f..%2fetc", 404, "no node sees"),
        ("/comparison/%ff", 400, "not UTF-8"),
    ):
        answer = await get(path)
        assert (answer[0], words in answer[1]) == (status, True), (path, answer)
