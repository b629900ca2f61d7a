"""OpenRiak's client for Python, generated from its model of Riak's HTTP API, against a whole node.

The client needs Python 3.12, so it runs in an environment of its own (`openriak_judge.py`), which is made from the
package index. `test_riak_folds.py` sends the same requests without it.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.threaded_node import running_node

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

HERE: Final = Path(__file__).parent

OLDEST: Final = (3, 12)

QUEUES: Final = """
[[queues]]
name = "to-riak"
riak_fetch = true
[[riak.trees]]
n_val = 1
bucket_types = "*"
"""

LACKING: Final = {
    **dict.fromkeys(("create_datatype", "get_datatype", "update_datatype"), "no data types"),
    **dict.fromkeys(("get_legacy_counter", "update_legacy_counter"), "no counters"),
    **dict.fromkeys(("map_reduce", "map_reduce_chunked", "get_map_reduce_usage", "head_map_reduce"), "no MapReduce"),
    **dict.fromkeys(("link_walk", "link_walk_default", "link_walk_legacy"), "no link walking"),
    **{
        f"{how}{default}secondary_index{of}": "no secondary indexes"
        for how in ("query_", "stream_")
        for default in ("", "default_")
        for of in ("", "_range")
    },
    **{
        f"{how}{default}bucket_query{rest}": "no queries"
        for how, rest in (("run_", ""), ("get_", "_results"))
        for default in ("", "default_")
    },
}  # fmt: skip
"""Operations that are refused here -> why; docs/http-between.md."""

OPERATIONS: Final = 96
"""Operations of the client."""


def interpreters() -> Iterator[Path]:
    """Pythons of this machine that the client may run on, this one first."""
    yield Path(sys.executable)
    for name in ("python3.13", "python3.12", "python3"):
        if found := shutil.which(name):
            yield Path(found)
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from sorted(pyenv.glob("versions/3.*/bin/python"), reverse=True)


def is_new_enough(python: Path) -> bool:
    """Whether it starts, and is no older than OLDEST."""
    test = f"import sys, venv, ensurepip; sys.exit(sys.version_info < {OLDEST})"
    return subprocess.run([python, "-c", test], capture_output=True, timeout=60, check=False).returncode == 0


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has the client."""
    found = next(filter(is_new_enough, interpreters()), None)
    if found is None:
        pytest.skip("needs a Python 3.12 or later")
    directory = tmp_path_factory.mktemp("openriak") / "venv"
    subprocess.run([found, "-m", "venv", directory], check=True, capture_output=True, timeout=120)
    made = directory / "bin" / "python"
    pip = [made, "-m", "pip", "install", "--quiet", "--no-deps", "-r", HERE / "openriak_requirements.txt"]
    installed = subprocess.run(pip, capture_output=True, text=True, timeout=200, check=False)
    if installed.returncode:
        pytest.skip(f"needs the package index: {installed.stderr[-300:]}")
    return made


def test_all_operations_succeed_but_those_of_features_that_there_are_not(python: Path, tmp_path: Path) -> None:
    """Of the 96 operations exactly those fail that belong to a feature which Isthmus does not have."""
    with running_node(tmp_path, QUEUES) as node:
        connection = http.client.HTTPConnection("127.0.0.1", node.http, timeout=20)
        body = json.dumps({"props": {"allow_mult": False}})  # Riak's default, for which the client was made
        connection.request("PUT", "/types/default/props", body, {"content-type": "application/json"})
        assert connection.getresponse().status == 204
        connection.close()
        url = f"http://127.0.0.1:{node.http}"
        judged = subprocess.run(
            [python, HERE / "openriak_judge.py", url, "to-riak", "judged"],
            capture_output=True, text=True, timeout=200, check=False,
        )  # fmt: skip
    assert judged.returncode == 0, judged.stderr[-2000:]
    outcomes = json.loads(judged.stdout)
    failed = {operation: why for operation, why in outcomes.items() if why is not None}
    assert {operation: why for operation, why in failed.items() if operation not in LACKING} == {}
    assert sorted(LACKING.keys() - failed.keys()) == [], "succeed after all"
    assert len(outcomes) == OPERATIONS
