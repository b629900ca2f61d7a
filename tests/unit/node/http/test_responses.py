"""The table of refusals in the documentation is the table in the code."""

from __future__ import annotations

import ast
from pathlib import Path

from isthmus.aae.exchange import cluster
from isthmus.aae.exchange import wire as tree_wire
from isthmus.aae.scheduling import scheduler
from isthmus.node.http.responses import status_of
from isthmus.queues import wire
from isthmus.repl.controller import bucket_properties, reassignment_plan, reassignments, stored_setting
from isthmus.repl.coordinator import routing, write_batch
from isthmus.repl.model import conditions, errors
from isthmus.repl.model import properties as model_properties

ROOT = Path(__file__).parents[4]
PAGES = ("http.md", "http-admin.md", "http-between.md")


def documented():
    """(status, reason) of every row of the tables of statuses, each once; other tables have no numbers of three digits
    there."""
    rows = []
    for page in PAGES:
        for line in (ROOT / "docs" / page).read_text().splitlines():
            cells = [c.strip() for c in line.split("|")]
            if len(cells) > 3 and len(cells[1]) == 3 and cells[1].isdigit():
                rows.append((int(cells[1]), cells[2].strip("`")))
    assert len(rows) == len(set(rows))
    return set(rows)


def refused_in_the_code():
    """(status, reason) of every `Refused(...)` that the HTTP packages make."""
    found = set()
    folders = (ROOT / "node" / name for name in ("http", "client_api", "admin_api", "dashboard"))
    for path in (path for folder in folders for path in folder.glob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "RequestRefused":
                status, reason = call.args[:2]
                assert isinstance(status, ast.Constant), ast.dump(status)
                assert isinstance(reason, ast.Constant), ast.dump(reason)
                found.add((status.value, reason.value))
    return found


def subclasses(kind):
    for sub in kind.__subclasses__():
        yield sub
        yield from subclasses(sub)


def test_the_documented_table_is_complete_and_true():
    """The pages of HTTP list every refusal of the code with its status, and no other."""
    taken_in = (
        errors,
        conditions,
        model_properties,
        routing,
        write_batch,
        write_batch,
        bucket_properties,
        stored_setting,
        reassignments,
        reassignment_plan,
        reassignments,
    )
    modules = (*taken_in, wire, scheduler, cluster, tree_wire)
    modules = {client_api.__name__ for client_api in modules}
    classes = {c for c in subclasses(errors.IsthmusError) if c.__module__ in modules}
    made = {(status_of(c("x")), c.reason) for c in classes} | {(500, "internal"), (404, "not-found")}
    assert made | refused_in_the_code() == documented()
