"""From the wheel to two clusters with TLS, by the unchanged commands of the pages, without the checkout.

Everything runs in shells with a home, a folder and an environment of their own. Only packages that Isthmus needs come
from the environment of the tests, by a file in the fresh one (`dependencies.pth`), since tests do without an index:
`pip` gets PIP_NO_INDEX and PIP_NO_DEPS. The editable installation of the checkout does not come with them, as Python
follows no .pth files of folders that a .pth file adds.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from isthmus.node.local import supervisor_client

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

REPOSITORY: Final = Path(__file__).parents[3]
PAGES: Final = REPOSITORY / "docs"
BASE_PYTHON: Final = Path(getattr(sys, "_base_executable", sys.executable)).resolve()

WITH_DEPENDENCIES: Final = (
    f"echo {sysconfig.get_path('purelib')}"
    """ > "$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/dependencies.pth" """
)


def commands(page: str, heading: str) -> str:
    """The first block of commands below a heading of a page."""
    text = (PAGES / f"{page}.md").read_text()
    below = re.split(rf"^## {re.escape(heading)}$", text, flags=re.MULTILINE)
    assert len(below) == 2, f"docs/{page}.md has not one heading {heading!r}"
    found = re.search(r"^```(?:sh)?\n(.*?)^```$", below[1], re.DOTALL | re.MULTILINE)
    assert found is not None, f"no commands below {heading!r} in docs/{page}.md"
    return found[1]


class Shells:
    """Shells of a user who has the wheel and the pages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir()
        tools = folder / "tools"
        tools.mkdir()
        (tools / "python3").symlink_to(BASE_PYTHON)
        self._variables = {
            "HOME": str(self.home),
            "PATH": f"{tools}:/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "PIP_NO_INDEX": "1",
            "PIP_NO_DEPS": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            **{name: value for name, value in os.environ.items() if name in ("JAVA_HOME", "TMPDIR")},
        }

    def run(self, script: str, *, code: int = 0) -> str:
        """The output of a script that must end with this code; its first command that fails ends it."""
        script = script.replace("/tmp/isthmus-secure", str(self.folder / "secure"))
        ran = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", script],
            cwd=self.home, env=self._variables, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert ran.returncode == code, f"{script}\n{ran.stdout}\n{ran.stderr}"
        assert "Traceback" not in ran.stderr
        return ran.stdout + ran.stderr


@pytest.fixture
def shells(tmp_path: Path) -> Iterator[Shells]:
    """Shells with the wheel of this checkout in their home; processes that run at the end are stopped."""
    made = Shells(tmp_path)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(made.home)]
    subprocess.run(build, cwd=REPOSITORY, capture_output=True, timeout=100, check=True)
    yield made
    supervisor_client.stop(tmp_path / "secure")


def test_the_pages_lead_from_the_wheel_to_two_clusters_with_tls(shells: Shells) -> None:
    """Install, look at the version, start the secure sample, write in east with its token, and read in west: each block
    unchanged from its page. Then the page's claims hold: no access without TLS or without a token, and both clusters
    are healthy."""
    install = commands("start", "Install")
    activate, pip, look = install.splitlines()
    assert pip.startswith("pip install ")
    told = shells.run("\n".join([activate, pip, WITH_DEPENDENCIES, look, "python -c 'import isthmus; print(isthmus)'"]))
    assert "extra local: installed" in told
    assert str(REPOSITORY) not in told.replace(str(shells.folder), "")
    assert str(shells.home / "isthmus") in told

    page = commands("security", "Try it")
    enter = ". isthmus/bin/activate\n"
    told = shells.run(enter + page)
    assert "east-1" in told
    exports = "".join(line + "\n" for line in page.splitlines() if line.startswith("export "))
    url = "https://127.0.0.1:19198/buckets/towns/keys/corinth"
    read = f'curl -s --cacert $ISTHMUS_CA -H "Authorization: Bearer $(cat $(dirname $ISTHMUS_CA)/read.token)" {url}'
    deadline = time.monotonic() + 60
    while (found := shells.run(exports + read)) != "on the isthmus":
        assert time.monotonic() < deadline, found
        time.sleep(0.5)

    assert "401" in shells.run(exports + f"curl -s -o /dev/null -w '%{{http_code}}' --cacert $ISTHMUS_CA {url}")
    plain = shells.run(f"curl -s {url.replace('https', 'http')}")
    assert "TLS is spoken here: write https:// instead of http://" in plain
    assert "TLS is spoken here" in (PAGES / "security.md").read_text()
    both = "--admin https://127.0.0.1:19099 --admin https://127.0.0.1:19199"
    checked = "".join(
        f"isthmus fullsync run all --wait --admin https://127.0.0.1:{port}\n" for port in (19_099, 19_199)
    )
    told = shells.run(enter + exports + checked + f"isthmus status {both}")
    assert "\n✓ all is well\n" in told
    assert "never" not in told
    assert "stopped" in shells.run(enter + "isthmus local down --dir /tmp/isthmus-secure")
