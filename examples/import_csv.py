"""Imports a CSV file in batches. Run: python examples/import_csv.py FILE BUCKET [URL ...]

The first line has the names of the columns, the first column is the key. The file is UTF-8. Running it again is safe: a
row replaces the value that is there, and of rows with the same key the last one stays. Rows that fail are printed, and
the exit code is 1.
"""

import csv
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from isthmus.client import BatchFailed, Client, ClientError, Put, StoredObject

ROWS_PER_BATCH = 1000


class Row(NamedTuple):
    """A row of the file; `error` is why it cannot be imported."""

    line: int
    key: str
    value: dict[str, str]
    error: str = ""


def rows_of(reader: "csv.DictReader[str]") -> Iterator[Row]:
    """The rows, also those that cannot be imported."""
    while True:
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield Row(reader.reader.line_num, "", {}, str(error))
            continue
        key = next(iter(fields.values()))
        # DictReader has further fields under the key None, and None for those that are missing.
        complete = None not in fields and None not in fields.values()
        yield Row(reader.line_num, key, fields, "" if complete else "not as many fields as the first line")


def load(client: Client, bucket: str, batch: list[Row]) -> int:
    """Write a batch; the number of rows that failed."""
    rows = {row.key: row for row in batch if not row.error}  # the last one of each key
    known: Sequence[object]
    try:
        known = client.get_many(bucket, rows)
    except BatchFailed as failed:
        known = failed.results
    errors = {key: found for key, found in zip(rows, known, strict=True) if isinstance(found, ClientError)}
    items = [
        Put(key, row.value, context=found if isinstance(found, StoredObject) else None)
        for (key, row), found in zip(rows.items(), known, strict=True)
        if key not in errors
    ]
    try:
        client.put_many(bucket, items)
    except BatchFailed as failed:
        errors |= {str(items[at].key): error for at, error in failed.errors.items()}
    failures = 0
    for row in batch:
        error = row.error or errors.get(row.key)
        if error:
            failures += 1
            print(f"line {row.line}, {row.key}: {error}", file=sys.stderr)
    return failures


def main(file: str, bucket: str, *urls: str) -> int:
    """Import a file; the exit code."""
    count = failures = 0
    with (
        # Bytes that are no UTF-8 become surrogate escapes, so that their row fails alone. A byte-order mark is skipped.
        Path(file).open(encoding="utf-8-sig", errors="surrogateescape", newline="") as opened,
        Client(urls or ["http://127.0.0.1:18098"]) as client,
    ):
        rows = rows_of(csv.DictReader(opened))
        while batch := list(islice(rows, ROWS_PER_BATCH)):  # a file of any size needs little memory
            failures += load(client, bucket, batch)
            count += len(batch)
    print(f"{count - failures} of {count} rows imported into {bucket}")
    return 1 if failures else 0


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
