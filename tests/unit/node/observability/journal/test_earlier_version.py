"""A journal on the files of an audit log, as the version before journals wrote them."""

from __future__ import annotations

import shutil
from pathlib import Path

from isthmus.node.observability.events import RecentEvents
from tests.support.journals import journal_in

FILES = Path(__file__).with_name("earlier_version")
"""Three files of that version, with lost lines; it ended amid the last one."""


async def test_acts_of_an_audit_log_are_read_and_continued(tmp_path: Path) -> None:
    """Every act is there as it was; the next one goes on in the newest file, behind the piece, with the next id. Events
    have files with other names, which that version does not take for its own."""
    shutil.copytree(FILES, tmp_path / "audit")
    before = {path.name: path.read_bytes() for path in FILES.iterdir()}
    recent = RecentEvents()
    log = journal_in(tmp_path, recent=recent)
    log.start()
    recent.keep(None, "info", {"event": "node.up"})
    page = await log.acts(None, 0, 10)
    assert ([act["id"] for act in page.lines], page.unreadable) == ([6, 3, 2, 1], 1)
    act = page.lines[2]
    assert (act["who"]["by"], act["what"]["act"], act["before"], act["after"], act["reason"]) == (
        "ann@desk", "set option replication.min.isr: value=2", 1, 2, "a drill",
    )  # fmt: skip
    assert page.lines[0]["lost_before"] == 2
    await log.append({name: value for name, value in act.items() if name != "id"})
    await log.stop()
    after = {path.name: path.read_bytes() for path in (tmp_path / "audit").iterdir()}
    assert after.keys() - before.keys() == {"events-000000000001.jsonl"}
    assert not any(Path(name).stem.isdigit() for name in after.keys() - before.keys())
    newest = max(before)
    assert {**after, newest: b""}.items() >= {**before, newest: b""}.items()
    assert after[newest].startswith(before[newest] + b'\n{"id":7,')
