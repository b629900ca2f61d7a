"""Requests of operators to the admin listeners of nodes, and which answers are right.

A node that is reached answers within the patience of its client, with a result or with a refusal that names its reason;
what else it does is a defect. It need not answer while it is frozen, killed or cut off.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from httptools import HttpParserError, HttpResponseParser

from isthmus.node.http.patience import header_of
from tests.simulation.world.kernel import SECOND
from tests.simulation.world.node import ADMIN_PORT

if TYPE_CHECKING:
    from tests.simulation.world.clusters import WorldCluster
    from tests.simulation.world.node import WorldNode
    from tests.simulation.world.steps import Doing
    from tests.simulation.world.world import World

PATIENCE_S: Final = 20.0
"""How long an operator waits for one answer, as the command line does."""

MARGIN_S: Final = 10.0
"""Within this time after the operator's patience an answer has come from a node that could answer."""

SETTLED_S: Final = 120.0
"""Within this time a healed cluster takes an act that undoes another."""

RETRY_S: Final = 1.0

NOT_FOUND: Final = frozenset(
    ("unknown", "unknown-queue", "unknown-node", "unknown-fullsync", "unknown-partition", "unknown-bucket-type")
)
"""What other acts may have taken away meanwhile."""

CONFLICTS: Final = frozenset(
    (
        "bucket-type-exists",
        "changed",
        "changed-meanwhile",
        "fenced",
        "has-leader",
        "not-eligible",
        "owned-by-other",
        "placement-differs",
        "plan-refused",
        "still-needed",
        "not-empty",
    )
)
"""409: the state is another one than the act needs."""

LATER: Final = frozenset(
    (
        "busy",
        "fenced",
        "incomplete",
        "not-enough-replicas",
        "not-leader",
        "not-ready",
        "out-of-storage",
        "overloaded",
        "retry",
        "timeout",
    )
)
"""503: refused for now."""


class WrongAnswer(AssertionError):
    """A node answers an operator as it must not, or not at all."""


class Answer(NamedTuple):
    """What a node answered."""

    status: int
    reason: str
    """Why it refused; "" where it did not."""
    body: dict[str, Any]

    @property
    def done(self) -> bool:
        """The act took effect."""
        return self.status < 300

    @property
    def unknown(self) -> bool:
        """It may have taken effect, or may still."""
        return self.status == 504


async def ask(
    doing: Doing,
    node: WorldNode,
    path: str,
    body: dict[str, Any] | None = None,
    *,
    allowed: Collection[str] = (),
    token: str | None = None,
    port: int = ADMIN_PORT,
) -> Answer | None:
    """One request, a POST where it has a body, with an administrator's token or `token` ("": none). None: no answer,
    of a node that could not give one. `allowed`: further reasons of 400, 401, 403 and 409 that are right. `port`: of
    the listener. Raises WrongAnswer."""
    world = doing.world
    method = "GET" if body is None else "POST"
    usual = token is None
    if token is None:
        token = "" if node.credentials is None else node.credentials.shown["admin"]
    before, began_ns = _state(world, node), world.kernel.now_ns
    try:
        status, raw = await _exchange(world, node, method, path, body, token, port)
    except (OSError, HttpParserError) as error:
        if before != _state(world, node) or not _able(node) or world.broken:
            doing.tell(f"{method} {node.name} {path}: {error or type(error).__name__}")
            return None
        raise WrongAnswer(f"{method} {path} at {node.name}, which runs undisturbed: {error!r}") from error
    answer = _parsed(status, raw)
    if body is not None or not answer.done:
        said = answer.body.get("error") or answer.body.get("outcome") or ""
        doing.tell(f"{method} {node.name} {path} {_shown(body)}: {status} {answer.reason} {str(said)[:160]}")
    if usual and answer.reason == "unauthorized" and node.credentials and began_ns < node.credentials.removed_ns:
        return None  # it was on its way with a token that has been taken out
    why = wrong(answer, allowed, disturbed=bool(world.broken))
    if why:
        raise WrongAnswer(f"{method} {path} {_shown(body)} at {node.name}: {status} {raw[:300]!r}: {why}")
    return answer


async def act(
    doing: Doing, cluster: WorldCluster, path: str, /, *, allowed: Collection[str] = (), **body: Any
) -> Answer | None:
    """A change, asked of a running node of the cluster by chance; None where no node runs or none answers."""
    running = cluster.running
    if not running:
        doing.tell(f"no node of {cluster.name} runs")
        return None
    given = {key.removesuffix("_"): value for key, value in body.items()}
    return await ask(doing, doing.chance.choice(running), path, given, allowed=allowed)


async def look(doing: Doing, cluster: WorldCluster, path: str) -> dict[str, Any] | None:
    """What a running node of the cluster says; None where no node says anything."""
    running = cluster.running
    if not running:
        return None
    answer = await ask(doing, doing.chance.choice(running), path)
    return answer.body if answer is not None and answer.done else None


async def insist(
    doing: Doing, cluster: WorldCluster, path: str, /, *, over: Collection[str] = (), **body: Any
) -> Answer:
    """A change that a healed cluster must take: repeated at any node until it is done, or refused with a reason in
    `over`, which says that there is nothing to do. Raises WrongAnswer after SETTLED_S."""
    return await until(
        doing,
        f"{path} at {cluster.name}",
        lambda: act(doing, cluster, path, allowed=over, **body),
        lambda answer: answer.done or answer.reason in over,
    )


async def until(
    doing: Doing,
    what: str,
    attempt: Callable[[], Awaitable[Answer | None]],
    holds: Callable[[Answer], bool],
    *,
    seconds: float = SETTLED_S,
) -> Answer:
    """Repeat `attempt` until its answer `holds`. Raises WrongAnswer after some virtual seconds."""
    kernel = doing.world.kernel
    ends_ns = kernel.now_ns + round(seconds * SECOND)
    last: Answer | None = None
    while True:
        answer = await attempt()
        if answer is not None and holds(answer):
            return answer
        last = answer or last
        if kernel.now_ns >= ends_ns:
            raise WrongAnswer(f"{what}: not within {seconds:g} s of a healed cluster; last: {last}")
        await asyncio.sleep(RETRY_S)


def wrong(answer: Answer, allowed: Collection[str], *, disturbed: bool) -> str:
    """Why an answer is wrong; "" if it is right."""
    status, reason = answer.status, answer.reason
    if answer.done:
        return ""
    if not reason or not isinstance(answer.body.get("error"), str):
        return "a refusal without a reason and a sentence"
    if reason in allowed:
        return ""
    known = {404: NOT_FOUND, 409: CONFLICTS, 422: {"too-many-properties"}, 502: {"peer-fault"}, 503: LATER,
             504: {"outcome-unknown"}, 500: {"local-fault"} if disturbed else ()}  # fmt: skip
    return "" if reason in known.get(status, ()) else "not an answer that the documentation has for this act"


def _parsed(status: int, raw: bytes) -> Answer:
    try:
        body = json.loads(raw)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        return Answer(status if status >= 300 else 599, "", {})
    return Answer(status, str(body.get("reason") or "") if status >= 300 else "", body)


def _shown(body: dict[str, Any] | None) -> str:
    return "" if body is None else json.dumps({key: value for key, value in body.items() if key != "by"})[:200]


# -- one exchange -----------------------------------------------------------------------------------------------------


def _state(world: World, node: WorldNode) -> tuple[object, ...]:
    """Changes whenever the node, or what lies between it and the operator, was disturbed."""
    return node.machine.boots, world.disturbances


def _able(node: WorldNode) -> bool:
    """The node can answer now."""
    return node.running and not node.machine.frozen and node.node is not None and not node.node.stopping


async def _exchange(
    world: World, node: WorldNode, method: str, path: str, body: dict[str, Any] | None, token: str, port: int
) -> tuple[int, bytes]:
    """Status and body of the answer. Raises OSError, also where none comes from a node that cannot give one."""
    loop = asyncio.get_running_loop()
    before = _state(world, node)
    host = node.machine.address
    context = None if node.credentials is None else node.credentials.client
    data = b"" if body is None else json.dumps({"by": "operator", **body}).encode()
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}:{port}", "Connection: close"]
    lines.append("Accept: */*" if port == ADMIN_PORT else "Accept: application/json")  # refusals are JSON there
    lines += [f"{name}: {value}" for name, value in header_of(PATIENCE_S).items()]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
    if token:
        lines.append(f"Authorization: Bearer {token}")
    async with asyncio.timeout(PATIENCE_S):
        transport, exchange = await loop.create_connection(lambda: _Exchange(loop), host, port, ssl=context)
    try:
        transport.write("\r\n".join([*lines, "", ""]).encode() + data)
        left_s = PATIENCE_S + MARGIN_S
        while left_s > 0:
            await asyncio.wait((exchange.answer,), timeout=1.0)
            if exchange.answer.done():
                return exchange.answer.result()
            left_s -= 1.0
        if _able(node) and not world.broken and before == _state(world, node):
            raise WrongAnswer(f"{method} {path} at {node.name}: no answer within {PATIENCE_S + MARGIN_S:g} s")
        raise TimeoutError("no answer")
    finally:
        transport.abort()


class _Exchange(asyncio.Protocol):
    """One answer on a connection of its own; it also receives the parser's callbacks."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.answer: asyncio.Future[tuple[int, bytes]] = loop.create_future()
        self._parser = HttpResponseParser(self)
        self._pieces: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        try:
            self._parser.feed_data(data)
        except HttpParserError as error:
            self._fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self._fail(exc or ConnectionError("the connection was closed before the end of the answer"))

    def on_body(self, piece: bytes) -> None:
        """A part of the body."""
        self._pieces.append(piece)

    def on_message_complete(self) -> None:
        """The whole answer."""
        if not self.answer.done():
            self.answer.set_result((self._parser.get_status_code(), b"".join(self._pieces)))

    def _fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
