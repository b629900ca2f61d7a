"""Imports a CSV file in batches. Run: python examples/import_csv.py FILE BUCKET [URL ...]

The first line has the names of the columns, the first column is the key. Running it again is safe: a row replaces the
value that is there. Rows that fail are printed, and the exit code is 1.
"""

import csv
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from isthmus.client import BatchFailed, Client, ClientError, Put, StoredObject

ROWS_PER_BATCH = 1000

Row = dict[str, str]


def batches(rows: Iterator[Row]) -> Iterator[list[Row]]:
    """The rows in batches, so that a file of any size needs little memory."""
    while batch := list(islice(rows, ROWS_PER_BATCH)):
        yield batch


def load(client: Client, bucket: str, rows: list[Row]) -> int:
    """Write rows under the value of their first column; the number of rows that failed."""
    keys = [next(iter(row.values())) for row in rows]
    known: Sequence[object]
    try:
        known = client.get_many(bucket, keys)
    except BatchFailed as failed:
        known = failed.results
    errors = {key: found for key, found in zip(keys, known, strict=True) if isinstance(found, ClientError)}
    items = [
        Put(key, row, context=found if isinstance(found, StoredObject) else None)
        for key, row, found in zip(keys, rows, known, strict=True)
        if key not in errors
    ]
    try:
        client.put_many(bucket, items)
    except BatchFailed as failed:
        errors |= {str(items[at].key): error for at, error in failed.errors.items()}
    for key, error in errors.items():
        print(f"{key}: {error}", file=sys.stderr)
    return len(errors)


def main(file: str, bucket: str, *urls: str) -> int:
    """Import a file; the exit code."""
    count = failures = 0
    with Path(file).open(newline="") as opened, Client(urls or ["http://127.0.0.1:18098"]) as client:
        for batch in batches(csv.DictReader(opened)):
            failures += load(client, bucket, batch)
            count += len(batch)
    print(f"{count - failures} of {count} rows are in {bucket}")
    return 1 if failures else 0


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
