"""The evidence that a comparison of clusters saves when it fails, shown on stand-ins."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.system.replication import clusters as module
from tests.system.replication.clusters import Clusters


@pytest.mark.parametrize("late", [True, False])
def test_a_difference_is_explained_kept_and_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """The message names a directory that has the logs and each cluster's explanation of the keys, and states whether
    the difference was still there half a minute later."""
    monkeypatch.setattr(module.tempfile, "mkdtemp", lambda prefix: str(tmp_path))
    (tmp_path / "out.log").write_text("what the node did")
    node = SimpleNamespace(log=tmp_path / "out.log")
    fault_cluster = SimpleNamespace(nodes={"n1": node}, wait_until_healthy=lambda _timeout_s: None, ended=[])
    made = Clusters.__new__(Clusters)
    made.by_name = {"east": fault_cluster, "west": fault_cluster}  # type: ignore[dict-item]
    made.arrows, made.bucket_types = [], ("default",)
    slept: list[float] = []

    def contents(cluster: str) -> Any:
        here = {"a": (200, "clock", ["v"])}
        return here if cluster == "east" or (late and slept) else {}

    monkeypatch.setattr(made, "contents", contents)
    monkeypatch.setattr(made, "see", lambda cluster, path: {"asked": [cluster, path]})
    monkeypatch.setattr(module.time, "sleep", slept.append)
    with pytest.raises(AssertionError, match="30 s later no more" if late else "30 s later still") as raised:
        made.check()
    assert str(tmp_path) in str(raised.value)
    assert slept == [module.LOOK_AGAIN_S]
    told = json.loads((tmp_path / "west-explain.json").read_text())
    assert told == {"default/a": {"asked": ["west", "/admin/explain?type=default&bucket=b&key=a"]}}
    assert (tmp_path / "east-0.log").read_text() == "what the node did"
