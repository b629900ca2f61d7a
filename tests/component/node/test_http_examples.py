"""The examples of docs/http.md and docs/first-application.md, sent to a real node: they have the documented effect."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import requests

from tests.support.threaded_node import running_node

PAGE = (Path(__file__).parents[3] / "docs" / "http.md").read_text()
FIRST = (Path(__file__).parents[3] / "docs" / "first-application.md").read_text()
NODE = "http://127.0.0.1:8098"


def curl(base: str, command: str) -> requests.Response:
    """Send the request of a page's curl command; base: the node's address."""
    given = iter(shlex.split(command)[1:])
    method, headers, body, url = "GET", {"Accept": "*/*"}, None, ""
    for word in given:
        match word:
            case "-X":
                method = next(given)
            case "-H":
                name, _, value = next(given).partition(": ")
                headers[name] = value
            case "-d":
                body = next(given)
            case "-o":
                next(given)
            case "-s":
                pass
            case _:
                assert not url, f"{word} in {command}"
                url = base + re.sub(r"^http://127.0.0.1:\d+", "", word)
    return requests.request(method, url, headers=headers, data=body, timeout=30)


def commands(page: str, path: str) -> list[str]:
    """The curl commands of a page that are about a path."""
    return [line for line in re.findall(r"^curl .*$", page, re.MULTILINE) if path in line]


def test_the_examples_of_siblings_and_refusals_in_json_work(tmp_path: Path) -> None:
    """Two writes without a clock are shown as on the page, and a misspelled parameter is refused in its words."""
    refused, *writes, read = commands(PAGE, "/buckets/baskets/keys/ann")
    with running_node(tmp_path) as node:
        base = f"http://127.0.0.1:{node.http}"
        refusal = curl(base, refused)
        assert refusal.status_code == 400
        assert refusal.text.strip() in PAGE
        assert [curl(base, write).status_code for write in writes] == [204, 204]
        found = curl(base, read)
        assert found.status_code == 300
        shown = PAGE.partition(read)[2].partition("```")[0]
        expected, document = json.loads(shown), found.json()
        for varying in ("vclock", "etag"):
            assert type(expected.pop(varying)) is type(document.pop(varying))
        for sibling in (*expected["siblings"], *document["siblings"]):
            del sibling["vtag"], sibling["last_modified_ms"]
        assert sorted(document["siblings"], key=str) == sorted(expected["siblings"], key=str)
        assert document.keys() == expected.keys()


def test_the_first_application_works_without_the_client(tmp_path: Path) -> None:
    """The page's curl commands store a value, show it, and show a conflict as JSON."""
    sent = commands(FIRST, "/buckets/cities/keys/corinth")
    with running_node(tmp_path) as node:
        answers = [curl(f"http://127.0.0.1:{node.http}", command) for command in sent]
    assert [answer.status_code for answer in answers] == [204, 200, 204, 300]
    assert answers[1].json() == {"people": 55000}
    assert sorted(one["json"]["people"] for one in answers[3].json()["siblings"]) == [55000, 58000]


def test_both_descriptions_are_where_the_page_says(tmp_path: Path) -> None:
    """Each listener has its own OpenAPI document, at the same path."""
    of_http, of_admin = commands(PAGE, "/openapi.json")
    with running_node(tmp_path) as node:
        found = [
            curl(f"http://127.0.0.1:{port}", c).json() for c, port in ((of_http, node.http), (of_admin, node.admin))
        ]
    assert all(document["servers"] and document["components"]["schemas"] for document in found)
    assert "/buckets/{bucket}/keys/{key}" in found[0]["paths"]
    assert "/admin/audit" in found[1]["paths"]


def test_the_examples_of_batches_in_json_work(tmp_path: Path) -> None:
    """The body that curl sends gets the statuses shown below it, and the Python program prints the written values."""
    sent, shown = re.findall(r"^curl -s (http\S+) .*? -d '(.*?)'\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE)[0][1:]
    program = re.findall(r"```python\n(import requests.*?)```", PAGE, re.DOTALL)[0]
    with running_node(tmp_path) as node:
        base = f"http://127.0.0.1:{node.http}"
        headers = {"Content-Type": "application/json"}
        answer = requests.post(f"{base}/batch/put", data=sent, headers=headers, timeout=30)
        expected = json.loads(shown)
        assert [one["status"] for one in answer.json()] == [one["status"] for one in expected] == [204, 204, 404]
        assert [one.keys() for one in answer.json()] == [one.keys() for one in expected]
        (tmp_path / "program.py").write_text(program.replace(NODE, base))
        ran = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=30)
    assert (ran.stdout, ran.stderr) == ("apples {'count': 3}\n", "")


def test_the_example_of_pages_works(tmp_path: Path) -> None:
    """The page's two requests get its two answers, token included."""
    requested = re.findall(r"^GET (/buckets/users/keys\S+)\n200 (\{.*\})$", PAGE, re.MULTILINE)
    assert len(requested) == 2
    with running_node(tmp_path) as node:
        base = f"http://127.0.0.1:{node.http}"
        for key in ("eu-1", "eu-2", "eu-3", "us-1"):
            requests.put(f"{base}/buckets/users/keys/{key}", json=1, timeout=30).raise_for_status()
        for path, shown in requested:
            assert requests.get(base + path, timeout=30).text == shown
