"""Every operation of OpenRiak's client for Python against a server: `python openriak_judge.py URL QUEUE BUCKET`.

Runs in an environment of its own, which has the packages of `openriak.txt` and nothing of ours (Python 3.12 or later).
Prints one JSON object: operation -> null where it succeeded, else what the client raised. Arguments that the client's
model does not require are left out, except where an operation has no meaning without them.
"""

import asyncio
import dataclasses
import inspect
import json
import sys
from typing import Any

from openriak import Config, OpenRiak, models
from smithy_core.documents import Document

TIMEOUT_S = 20

FILTER = "eyJjaGFuZ2VfbWV0aG9kIjogImNvdW50In0="  # {"change_method": "count"}


def arguments(operation: str, queue: str, bucket: str) -> dict[str, Any]:
    """The members of inputs that an operation gets, if its input has them."""
    found: dict[str, Any] = {
        "bucket": bucket, "key": "hello", "bucket_type": "default", "content_type": "text/plain", "body": b"abc",
        "w": "1", "dw": "1", "queue_name": queue, "object_format": "internal", "nval": 1, "n_val": 1, "size": 1,
        "count": 1, "tree_size": "small", "filter": FILTER, "walk": "_,_,_",
        "props": Document({"props": {"allow_mult": False}}), "keys_clocks": Document({"keys-clocks": []}),
    }  # fmt: skip
    if "nval" in operation:
        found["filter"] = "WzFd"  # [1]
    if "index" in operation:
        found |= {"field": "a_bin"} | ({"start": "a", "end": "z"} if "range" in operation else {"value": "x"})
    return found


async def call(client: OpenRiak, operation: str, members: dict[str, Any]) -> None:
    """One operation, and its whole answer. Raises what the client raises."""
    method = getattr(client, operation)
    kind = next(iter(inspect.signature(method).parameters.values())).annotation
    kind = getattr(models, kind) if isinstance(kind, str) else kind
    known = {field.name for field in dataclasses.fields(kind)}
    async with asyncio.timeout(TIMEOUT_S):
        answer = await method(kind(**{name: value for name, value in members.items() if name in known}))
        body = getattr(answer, "body", None)
        read = getattr(body, "read", None) if not isinstance(body, Document) else None
        if read is not None:
            content = read()
            await content if inspect.isawaitable(content) else None


async def main(url: str, queue: str, bucket: str) -> None:
    """Print how each operation ended."""
    outcomes: dict[str, str | None] = {}
    client = OpenRiak(Config(endpoint_uri=url))
    for operation, _ in inspect.getmembers(client, inspect.iscoroutinefunction):
        if operation.startswith("_"):
            continue
        await call(client, "put_default_object", arguments("put_default_object", queue, bucket))
        try:
            await call(client, operation, arguments(operation, queue, bucket))
        except Exception as error:  # noqa: BLE001 -- whatever the client raises
            outcomes[operation] = f"{type(error).__name__}: {' '.join(str(error).split())[-200:]}"
        else:
            outcomes[operation] = None
    print(json.dumps(outcomes))


asyncio.run(main(*sys.argv[1:]))
