"""`isthmus kv`: bytes in and out, siblings shown, exit codes that scripts can trust."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from isthmus.config.settings import Address, ListenSettings
from isthmus.node.cli import kv
from isthmus.node.cli import main as cli
from isthmus.node.cli.exit_codes import Exit
from tests.support.memory_client_api import ClientApiFixture, ServedApp, make_client_api

Run = Callable[..., tuple[int, bytes, str]]


@pytest.fixture
def client_api() -> ClientApiFixture:
    return make_client_api()


@pytest.fixture
def run(client_api: ClientApiFixture, monkeypatch: pytest.MonkeyPatch, capfdbinary: Any) -> Iterator[Run]:
    """run("kv", "get", ..., stdin=b""): exit code, standard output, standard error."""
    served = ServedApp(client_api.app, ListenSettings(http=Address("127.0.0.1", 0)))
    monkeypatch.setenv("ISTHMUS_HTTP", f"http://127.0.0.1:{served.port}")

    def call(*arguments: str, stdin: bytes = b"") -> tuple[int, bytes, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = cli.main(["kv", *arguments])
        sys.stdout.flush()
        out, err = capfdbinary.readouterr()
        return code, out, err.decode()

    yield call
    served.stop()


def test_bytes_go_in_and_come_out_as_they_are(run: Run, tmp_path: Any) -> None:
    """A value of any bytes from standard input, a file or the command line is read back byte by byte."""
    value = bytes(range(256)) + b"\n"
    assert run("put", "b", "from stdin", stdin=value)[0] == Exit.OK
    file = tmp_path / "value"
    file.write_bytes(value)
    assert run("put", "b", "from file", "--file", str(file))[0] == Exit.OK
    assert run("put", "b", "argument", "text")[0] == Exit.OK
    for key, wanted in (("from stdin", value), ("from file", value), ("argument", b"text")):
        assert run("get", "b", key) == (Exit.OK, wanted, "")
    assert run("put", "b", "empty", "")[0] == Exit.OK
    assert run("get", "b", "empty") == (Exit.OK, b"", "")


def test_a_key_is_type_bucket_key_as_everywhere(run: Run) -> None:
    """The part before the first slash is the bucket type, default without one; after the older --bucket-type a slash is
    part of the bucket's name, and a message names both."""
    run("put", "default/b", "k", "v")
    assert run("get", "b", "k") == (Exit.OK, b"v", "")
    run("put", "default/a/b", "k", "w")
    assert run("get", "a/b", "k", "--bucket-type", "default") == (Exit.OK, b"w", "")
    code, _, said = run("get", "default/a/b", "l")
    assert (code, said) == (Exit.DIFFERS, "isthmus: not found in bucket 'a/b' of bucket type 'default'\n")
    code, out, _ = run("get", "default/a%2Fb", "k", "--percent")
    assert (code, out) == (Exit.OK, b"w")
    assert run("list", "default/b")[1] == b"k\n"
    assert {b"b", b"a/b"} <= set(run("list", "default/")[1].split())


def test_an_absent_and_a_deleted_key_are_code_1(run: Run) -> None:
    """Standard output is empty, standard error has one line; with JSON the output has the clock of the deletion."""
    assert run("get", "b", "k") == (Exit.DIFFERS, b"", "isthmus: not found\n")
    assert run("delete", "b", "k")[0] == Exit.DIFFERS
    run("put", "b", "k", "v")
    code, clock, _ = run("delete", "b", "k")
    assert code == Exit.OK
    assert run("get", "b", "k") == (Exit.DIFFERS, b"", "isthmus: deleted\n")
    code, out, _ = run("get", "b", "k", "-o", "json")
    shown = json.loads(out)
    assert (code, shown["found"], shown["siblings"][0]["deleted"]) == (Exit.DIFFERS, False, True)
    assert shown["clock"] == clock.decode().strip()


def test_siblings_are_shown_and_resolved_by_clock(run: Run) -> None:
    """Two writes without a clock are siblings, each to be read by its vtag; --clock and --replace leave one."""
    run("put", "b", "k", "one", "--content-type", "text/plain", "--meta", "Colour=red")
    run("put", "b", "k", "two")
    code, out, err = run("get", "b", "k")
    assert (code, out) == (Exit.DIFFERS, b"")
    assert "2 siblings" in err
    code, out, _ = run("get", "b", "k", "-o", "json")
    shown = json.loads(out)
    assert code == Exit.DIFFERS
    values = {sibling["value"]: sibling for sibling in shown["siblings"]}
    assert values["one"]["metadata"] == {"colour": "red"}
    assert values["one"]["content_type"] == "text/plain"
    assert run("get", "b", "k", "--vtag", values["two"]["vtag"]) == (Exit.OK, b"two", "")
    code, out, err = run("get", "b", "k", "--vtag", "abc")
    assert (code, out) == (Exit.DIFFERS, b"")
    assert err.startswith("isthmus: there is no sibling 'abc'; there are ")
    assert all(sibling["vtag"] in err for sibling in values.values())
    assert "not found" in run("get", "b", "nokey", "--vtag", "abc")[2]
    assert run("put", "b", "k", "three", "--clock", shown["clock"])[0] == Exit.OK
    assert run("get", "b", "k") == (Exit.OK, b"three", "")
    assert run("put", "b", "k", "four", "--replace")[0] == Exit.OK
    assert run("get", "b", "k") == (Exit.OK, b"four", "")


def test_names_of_any_bytes_are_listed_and_taken_back(run: Run) -> None:
    """Names that are not text are percent-encoded; with --percent every name can be entered as it was printed."""
    for name in ("a/b", "a%b", "%FF%00", "."):
        assert run("put", "b", name, "v")[0] == Exit.OK
    assert run("put", "--percent", "b", "%FF%00", "raw")[0] == Exit.OK
    code, out, _ = run("list", "b", "--percent")
    assert code == Exit.OK
    names = out.decode().splitlines()
    assert sorted(names) == sorted(["a%2Fb", "a%25b", "%25FF%2500", "%FF%00", "."])
    for name in names:
        assert run("get", "--percent", "b", name)[0] == Exit.OK
    assert run("get", "--percent", "b", "%FF%00")[1] == b"raw"
    assert run("list", "b", "--limit", "2")[1].count(b"\n") == 2
    assert json.loads(run("list", "-o", "json")[1]) == {"buckets": ["b"]}
    assert len(json.loads(run("list", "b", "-o", "json")[1])["keys"]) == 5
    assert json.loads(run("list", "none", "-o", "json")[1]) == {"keys": []}


def test_a_listing_goes_on_in_pages(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, with a prefix; the token of the next page stands apart from the names, and with JSON beside them. A
    limit above a node's largest page is several of its pages."""
    for name in ("eu-1", "eu-2", "eu-3", "us-1"):
        assert run("put", "users", name, "v")[0] == Exit.OK
    code, out, err = run("list", "users", "--prefix", "eu-", "--limit", "2")
    assert (code, out) == (Exit.OK, b"eu-1\neu-2\n")
    before, _, token = err.strip().rpartition(" ")
    assert before == "isthmus: there are more: --continuation"
    rest = "list", "users", "--prefix", "eu-", "--continuation", token
    assert run(*rest) == (Exit.OK, b"eu-3\n", "")
    shown = json.loads(run("list", "users", "--limit", "2", "-o", "json")[1])
    assert (shown["keys"], shown["continuation"] != token) == (["eu-1", "eu-2"], True)
    assert json.loads(run(*rest, "-o", "json")[1]) == {"keys": ["eu-3"]}
    assert run("list", "users", "--prefix", "%75s", "--percent") == (Exit.OK, b"us-1\n", "")
    assert json.loads(run("list", "--prefix", "u", "-o", "json")[1]) == {"buckets": ["users"]}
    assert run("list", "users", "--continuation", token)[0] == Exit.REFUSED, "a token of another listing"
    monkeypatch.setattr(kv, "PAGE_NAMES_MAX", 1)
    code, out, err = run("list", "users", "--limit", "3")
    assert (code, out.split(), "--continuation" in err) == (Exit.OK, [b"eu-1", b"eu-2", b"eu-3"], True)
    assert run("list", "users", "--limit", "4")[2] == ""


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("get", "b", ""), Exit.USAGE),
        (("get", "--percent", "b", "%4"), Exit.USAGE),
        (("put", "b", "k", "v", "--clock", "!"), Exit.USAGE),
        (("put", "b", "k", "v", "--meta", "nameless"), Exit.USAGE),
        (("put", "b", "k", "v", "--clock", "AAAA"), Exit.REFUSED),
        (("get", "b", "k", "--type", "none"), Exit.REFUSED),
        (("list", "--bucket-type", "none"), Exit.REFUSED),
        (("get", "b", "k", "--http", "http://127.0.0.1:1"), Exit.UNAVAILABLE),
        (("list", "--http", "ftp://x"), Exit.USAGE),
        (("list", ".."), Exit.USAGE),
        (("list", "--bucket-type", "."), Exit.USAGE),
    ],
)
def test_failures_have_their_codes_and_one_line(run: Run, arguments: tuple[str, ...], code: int) -> None:
    """A wrong command line, a refusal and a silent node are distinguished, each in one sentence."""
    found, out, err = run(*arguments)
    assert found == code
    assert out == b""
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("output", ["json", "table"])
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("list", "b", "--http", "http://127.0.0.1:1"), Exit.UNAVAILABLE),
        (("list", "--http", "http://127.0.0.1:1"), Exit.UNAVAILABLE),
        (("list", "none/b"), Exit.REFUSED),
        (("list", "--bucket-type", "none"), Exit.REFUSED),
    ],
)
def test_a_listing_that_cannot_begin_prints_no_part_of_a_document(
    run: Run, arguments: tuple[str, ...], code: int, output: str
) -> None:
    """No node, or an unknown bucket type: nothing on standard output, in either form."""
    found, out, err = run(*arguments, "-o", output)
    assert (found, out) == (code, b"")
    assert len(err.splitlines()) == 1


def test_a_content_type_of_another_form_is_refused(run: Run) -> None:
    """As a PUT over HTTP refuses it: one line with the reason, and nothing is written."""
    code, out, err = run("put", "b", "k", "v", "--content-type", "bad")
    assert (code, out) == (Exit.REFUSED, b"")
    assert "Content-Type is not of the form TYPE/SUBTYPE" in err
    assert run("get", "b", "k")[0] == Exit.DIFFERS


def test_a_refusal_for_now_is_incomplete(run: Run, client_api: ClientApiFixture) -> None:
    """A temporary refusal by the node is code 3 with the node's own sentence."""
    from isthmus.repl.model.errors import NotReady

    client_api.kv.fail = NotReady("no leader yet")
    for arguments in (("get", "b", "k"), ("put", "b", "k", "v"), ("delete", "b", "k"), ("list", "b")):
        code, _, err = run(*arguments)
        assert (code, "no leader yet" in err) == (Exit.UNAVAILABLE, True)
