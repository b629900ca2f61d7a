"""Numbers and findings as the dashboard's pages show them (js/units.js, js/findings.js), run by Deno."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]

SCRIPTS = REPOSITORY / "node" / "dashboard" / "static" / "js"
UNITS = SCRIPTS / "units.js"
DENO = shutil.which("deno", path=str(Path(sys.executable).parent))

CASES = [
    ("milliseconds", 999.4, "999 ms"),
    ("milliseconds", 999.6, "1 s"),
    ("milliseconds", 1_000, "1 s"),
    ("milliseconds", 0.9996, "1 ms"),
    ("milliseconds", 0.999, "999 µs"),
    ("seconds", 59.94, "59.9 s"),
    ("seconds", 59.96, "1 min 0 s"),
    ("seconds", 3_599.6, "1 h 0 min"),
    ("seconds", 86_399.6, "1 d 0 h"),
    ("seconds", -0.9999, "-1 s"),
    ("seconds", 0, "0 s"),
    ("percent", 0.9996, "99.9 %"),
    ("percent", 0.99999, "99.9 %"),
    ("percent", 0.9994, "99.9 %"),
    ("percent", 1, "100 %"),
    ("percent", 0.00001, "0.001 %"),
    ("percent", 0, "0 %"),
    ("bytes", 999, "999 B"),
    ("bytes", 999_499, "999 kB"),
    ("bytes", 999_600, "1 MB"),
    ("number", 99.96, "100"),
    ("number", 9.996, "10"),
    ("rate", 0.004, "0.004 /s"),
    ("rate", 0.125, "0.13 /s"),
    ("milliseconds", None, "unknown"),
    ("percent", None, "unknown"),
    ("bytes", None, "unknown"),
]


def test_numbers_at_the_bounds_of_their_units() -> None:
    """A value that rounds to the next unit is shown in it, a share that is not whole is never 100 %, what is not 0 is
    never shown as 0, and what is not known is \"unknown\"."""
    assert DENO is not None, "Deno comes with the packages of requirements.lock"
    calls = ",".join(f"units[{json.dumps(name)}]({json.dumps(value)})" for name, value, _ in CASES)
    program = f"import * as units from {json.dumps(UNITS.as_uri())}; console.log(JSON.stringify([{calls}]));"
    done = subprocess.run([DENO, "eval", program], capture_output=True, text=True, check=True)
    shown = dict(zip([case[:2] for case in CASES], json.loads(done.stdout), strict=True))
    assert shown == {case[:2]: case[2] for case in CASES}


def test_a_page_shows_a_finding_by_the_severity_that_the_node_gave_it() -> None:
    """The worst finding of a code about a subject counts; what has none is judged by nobody. The words of states have
    the tones of their findings: a link that fails and a node that is gone are warnings everywhere."""
    assert DENO is not None, "Deno comes with the packages of requirements.lock"
    findings = [
        {"code": "lag", "severity": "critical", "subject": "queue q"},
        {"code": "lag", "severity": "warning", "subject": "queue q"},
        {"code": "links-fail", "severity": "warning", "subject": "cluster west"},
        {"code": "lag", "severity": "unknown", "subject": "queue r"},
    ]
    asked = [
        ["lag", "queue q"],
        ["links-fail", "cluster west"],
        ["lag", "queue r"],
        ["lag", "queue s"],
        ["gaps", "queue q"],
    ]
    program = (
        f"import {{ toneOfFinding }} from {json.dumps((SCRIPTS / 'findings.js').as_uri())};"
        f"import {{ toneOf }} from {json.dumps((SCRIPTS / 'badge.js').as_uri())};"
        f"const found = {json.dumps(findings)};"
        f"const tones = {json.dumps(asked)}.map(([code, subject]) => toneOfFinding(found, code, subject) ?? null);"
        'console.log(JSON.stringify([...tones, toneOf("failing"), toneOf("gone"), toneOf("offline")]));'
    )
    done = subprocess.run([DENO, "eval", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == ["bad", "warn", "unknown", None, None, "warn", "warn", "bad"]
