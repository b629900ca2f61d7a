"""Options of `format("isthmus")`, validated before any work starts. Pure.

Unknown options and invalid values are errors that say what would be right; all are reported at once. docs/spark.md has
the table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

from isthmus.aae.reconcile.client import Credentials
from isthmus.aae.row_stream.wire import Consistency, RowView
from isthmus.config.text import similar
from isthmus.repl.model.errors import BadInput
from isthmus.repl.model.keys import SEGMENT_COUNT
from isthmus.repl.model.timestamps import DIGITS_MIN, parse_timestamp_ms

FINDINGS: Final = "findings"

URLS_MAX: Final = 256
"""Maximum number of URLs; one that responds is enough."""

SPLITS_MAX: Final = 65_536

Parsed = TypeVar("Parsed")


class RunOptions(NamedTuple):
    """All options. `segments`: [first, end) of 2^20; times in ms, 0: no bound; `rows_per_second` 0: no limit; `splits`
    0: one Spark partition per partition of the cluster."""

    view: str = RowView.KEYS.value
    urls: tuple[str, ...] = ()
    bucket_type: str = "default"
    bucket: bytes = b""
    prefix: bytes = b""
    segments: tuple[int, int] = (0, SEGMENT_COUNT)
    modified_since_ms: int = 0
    modified_before_ms: int = 0
    consistency: Consistency = Consistency.ANY
    columns: tuple[str, ...] = ()
    rows_per_second: int = 0
    tasks_at_once: int = 0
    splits: int = 0
    failover: str = "continue"
    manifest: str = ""
    path: str = ""
    starting: str = "earliest"
    rows_per_batch: int = 0
    origin: bytes = b""
    rejected: str = "fail"
    batch_items: int = 500
    text: bool = False
    not_utf8: str = "fail"
    on_conflict: str = "sibling"
    give_up_after_s: int = 120
    credentials: Credentials = Credentials()


OF_A_TABLE: Final = (
    "; a table has options if CREATE TABLE name USING isthmus OPTIONS (urls '...') made it, without columns or AS"
    " SELECT; otherwise give them where it is used: spark.read.options(urls='...').table(name),"
    " df.writeTo(name).options(urls='...').append(), name WITH (urls = '...')"
)
"""Appended when there are no options at all, as for a table made by CREATE TABLE with columns or saveAsTable."""

STATEMENT_OPTION: Final = "option."
"""Prefix of the options in OPTIONS (...) of CREATE TABLE. Spark adds them without it, too, together with the table's
properties, its owner and `provider`, which it adds for no other use of a data source."""


def options_of_create(given: Mapping[str, str]) -> dict[str, str] | None:
    """The options of a CREATE TABLE; None if these are those of a read or a write."""
    if "provider" not in {name.lower() for name in given}:
        return None
    return {
        name[len(STATEMENT_OPTION) :]: text for name, text in given.items() if name.lower().startswith(STATEMENT_OPTION)
    }


def merge_options(kept: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """The options of a use of a table that keeps some. Given ones come first; with `urls` among them the table's are
    left out altogether, since its token and authorities may be those of another cluster."""
    if "urls" in {name.lower() for name in given}:
        return dict(given)
    return {
        **{name.lower(): text for name, text in kept.items()},
        **{name.lower(): text for name, text in given.items()},
    }


def decode_kept(text: object) -> dict[str, str]:
    """Options that a column's metadata has kept. Raises BadInput."""
    try:
        found = json.loads(str(text))
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(one, str) for one in found.values()):
        raise BadInput("the table's first column has damaged options in its metadata: create the table again")
    return found


def parse_options(given: Mapping[str, str]) -> RunOptions:
    """The options of a read or a write. Raises BadInput with all errors."""
    faults: list[str] = []
    found: dict[str, object] = {}
    for name, text in given.items():
        known = name.lower()
        parse = _PARSERS.get(known)
        if parse is None:
            near = similar(known, _PARSERS)
            hint = f", did you mean {near[0]}?" if near else f"; there are {', '.join(sorted(_PARSERS))}"
            faults.append(f"option {name} is unknown{hint}")
            continue
        try:
            found[known] = parse(text)
        except ValueError as error:
            faults.append(f"option {name} = {text!r}: {error}")
    credentials = Credentials(*(str(found.pop(name, "")) for name in Credentials._fields))
    found["credentials"] = credentials
    if bool(credentials.certificate_file) != bool(credentials.key_file):
        faults.append("options certificate_file and key_file go together")
    for ours, theirs in (("modified_since_ms", "modified_since"), ("modified_before_ms", "modified_before")):
        if theirs in found:
            found[ours] = found.pop(theirs)
    options = RunOptions()._replace(**found)  # type: ignore[arg-type]
    if options.view == FINDINGS:
        if not options.path:
            faults.append("option path is missing: the directory of a run's findings, or .load(PATH)")
    elif not options.urls and "urls" not in given:
        missing = "option urls is missing: the http URLs of some nodes of the cluster, separated by commas"
        faults.append(missing + ("" if given else OF_A_TABLE))
    if options.prefix and not options.bucket:
        faults.append("option prefix is of the keys of a bucket: set the option bucket, too")
    if faults:
        raise BadInput("; ".join(faults))
    return options


def _urls(text: str) -> tuple[str, ...]:
    urls = tuple(part.strip().rstrip("/") for part in text.split(",") if part.strip())
    if not 0 < len(urls) <= URLS_MAX:
        raise ValueError(f"1 to {URLS_MAX} URLs are needed, separated by commas")
    for url in urls:
        if not _of_a_listener(url):
            raise ValueError(f"{url!r} is not the URL of a node's http listener, such as http://node1:8098")
    return urls


def _of_a_listener(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    alone = not (parts.path or parts.query or parts.fragment or "@" in parts.netloc)
    return alone and parts.scheme in ("http", "https") and bool(parts.hostname) and port != 0


def _choice(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"one of {', '.join(words)} is needed")
        return text

    return parse


def _consistency(text: str) -> Consistency:
    return Consistency(_choice(*Consistency)(text))


def _number(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isascii() or not text.isdecimal() or not least <= int(text) <= most:
            raise ValueError(f"a whole number from {least} to {most} is needed")
        return int(text)

    return parse


def parse_segments(text: str) -> tuple[int, int]:
    """FIRST-END, END not included, or one segment. Raises ValueError."""
    first, dash, end = text.partition("-")
    try:
        start = int(first)
        stop = int(end) if dash else start + 1
    except ValueError:
        start, stop = -1, 0
    if not 0 <= start < stop <= SEGMENT_COUNT:
        raise ValueError(f"a range FIRST-END of segments within 0-{SEGMENT_COUNT} is needed, END not included")
    return start, stop


def parse_time_ms(text: str) -> int:
    """ISO 8601 (UTC unless it says otherwise), or milliseconds since 1970, of 11 digits or more. Raises ValueError."""
    try:
        time_ms = parse_timestamp_ms(text)
    except ValueError:
        raise ValueError(
            f"a time such as 2026-01-31T12:00:00Z, or milliseconds since 1970 in {DIGITS_MIN} digits or more, is needed"
        ) from None
    if time_ms < 0:
        raise ValueError("a time since 1970 is needed")
    return time_ms


def parse_before_ms(text: str) -> int:
    """As `parse_time_ms`; 0 would be no bound at all. Raises ValueError."""
    if text == "0" or not (time_ms := parse_time_ms(text)):
        raise ValueError("a time after 1970 is needed: nothing is older")
    return time_ms


def _name(text: str) -> str:
    if not text:
        raise ValueError("a name is needed")
    return text


def parse_bytes(text: str) -> bytes:
    """Text as UTF-8, or bytes as 0x and hexadecimal digits. Raises ValueError."""
    if not text:
        raise ValueError("a name is needed")
    if text.startswith("0x"):
        try:
            name = bytes.fromhex(text[2:])
        except ValueError:
            name = b""
        if not name:  # and not a name that means all
            raise ValueError("0x is followed by pairs of hexadecimal digits")
        return name
    return text.encode()


def _uuid(text: str) -> bytes:
    try:
        raw = bytes.fromhex(text.replace("-", ""))
    except ValueError:
        raw = b""
    if len(raw) != 16:
        raise ValueError("a cluster's uuid, 32 hexadecimal digits, is needed")
    return raw


def _columns(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if not names:
        raise ValueError("names of columns are needed, separated by commas")
    return names


_PARSERS: Final[Mapping[str, Callable[[str], object]]] = {
    "view": _choice(*RowView, FINDINGS),
    "urls": _urls,
    "bucket_type": _name,
    "bucket": parse_bytes,
    "prefix": parse_bytes,
    "segments": parse_segments,
    "modified_since": parse_time_ms,
    "modified_before": parse_before_ms,
    "consistency": _consistency,
    "columns": _columns,
    "rows_per_second": _number(1, 1_000_000_000),
    "tasks_at_once": _number(1, 100_000),
    "splits": _number(1, SPLITS_MAX),
    "failover": _choice("continue", "fail"),
    "manifest": _name,
    "path": _name,
    "starting": _choice("earliest", "latest"),
    "rows_per_batch": _number(1, 1_000_000_000),
    "origin": _uuid,
    "rejected": _choice("fail", "count"),
    "batch_items": _number(1, 10_000),
    "text": lambda text: _choice("true", "false")(text.lower()) == "true",
    "not_utf8": _choice("fail", "null"),
    "on_conflict": _choice("sibling", "replace"),
    "give_up_after_s": _number(1, 86_400),
    "token_file": _name,
    "ca_file": _name,
    "certificate_file": _name,
    "key_file": _name,
}
