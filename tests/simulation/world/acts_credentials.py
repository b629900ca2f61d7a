"""What operators do to tokens and certificates: rotate and renew them, and make mistakes that nodes must not take over.

The procedures are those of docs/security.md. A file that cannot be used changes nothing but the status: what was in
force stays so until the file is right again, or the node starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.world import credentials as made
from tests.simulation.world.admin import WrongAnswer, ask
from tests.simulation.world.credentials import ROLES, Credentials, replace
from tests.simulation.world.faults import CUT_S, for_a_while, start_again
from tests.simulation.world.kernel import SECOND
from tests.simulation.world.node import ADMIN_PORT
from tests.simulation.world.steps import Doing, StepKind, step

if TYPE_CHECKING:
    from tests.simulation.world.clusters import WorldCluster
    from tests.simulation.world.node import WorldNode

NOTICED_S: Final = 3.0
"""Within this time a node that is asked has read a changed file: it looks once a second."""

NOT_IN_FORCE: Final = "is not in force"
"""Part of the sentence about a file that cannot be used, in a cluster's status."""

UNKNOWN: Final = "a-token-that-nobody-has"


def _credentials(cluster: WorldCluster) -> Credentials:
    assert cluster.credentials is not None
    return cluster.credentials


def _running(doing: Doing) -> WorldNode | None:
    return doing.node(lambda each: each.running)


def _hang_up(doing: Doing, node: WorldNode) -> None:
    """SIGHUP, or nothing: a node looks by itself."""
    if node.running and doing.chance.random() < 0.6:
        doing.tell(f"SIGHUP to {node.name}: {node.machine.loop.signal(signal.SIGHUP)}")


async def _roles_of(doing: Doing, node: WorldNode, token: str) -> str:
    """What a node says to a token: "known", "unknown", or "" if it says nothing."""
    answer = await ask(doing, node, "/admin/cluster", token=token, allowed={"unauthorized", "forbidden"})
    if answer is None or not (answer.done or answer.reason in ("unauthorized", "forbidden")):
        return ""
    return "unknown" if answer.reason == "unauthorized" else "known"


async def _must_say(doing: Doing, node: WorldNode, token: str, wanted: str, why: str) -> None:
    said = await _roles_of(doing, node, token)
    if said not in ("", wanted):
        raise WrongAnswer(f"{node.name}: token {token} is {said} there, {why}")


# -- tokens -----------------------------------------------------------------------------------------------------------


@step(StepKind.ACT, weight=4, needs="tokens")
async def token_rotate(doing: Doing) -> None:
    """The new token is a second line at every node; then people and sinks show it; then the old line is removed."""
    cluster, role = doing.cluster(), doing.chance.choice(ROLES)
    credentials = _credentials(cluster)
    async with credentials.lock:
        old = list(credentials.accepted[role])
        credentials.accepted[role] = [*old, credentials.next_token(role)]
        await _at_all_nodes(doing, cluster, role)
        credentials.distribute(role)
        doing.tell(f"{cluster.name} shows another token of the role {role}")
        for node in cluster.running:
            await _must_say(doing, node, old[-1], "known", "and is in its file still")
        await asyncio.sleep(NOTICED_S)
        credentials.accepted[role] = credentials.accepted[role][len(old) :]
        credentials.removed_ns = doing.world.kernel.now_ns
        await _at_all_nodes(doing, cluster, role)
        for node in cluster.running:
            await _must_say(doing, node, old[-1], "unknown", "and was taken out of its file")
            await _must_say(doing, node, credentials.shown[role], "known", "and is in its file")


async def _at_all_nodes(doing: Doing, cluster: WorldCluster, role: str) -> None:
    """Write the file of a role at every node, and wait until nodes have read it."""
    for node in list(cluster.nodes.values()):
        _credentials(cluster).write_tokens(node.directory, role)
        doing.tell(f"{node.name} has {len(_credentials(cluster).accepted[role])} tokens of the role {role}")
        _hang_up(doing, node)
    await asyncio.sleep(NOTICED_S)


Spoiling = Callable[[Path], None]
"""Makes a file one that cannot be used."""


def _content(content: bytes, mode: int = 0o600) -> Spoiling:
    return lambda path: replace(path, content, mode)


def _open_to_all(path: Path) -> None:
    replace(path, path.read_bytes(), 0o604)


TOKENS_SPOILED: Final[dict[str, Spoiling]] = {
    "is empty": _content(b""),
    "has a line that is no token": _content(b"east.read.000000000\nno token\n"),
    "begins with a mark": _content(b"\xef\xbb\xbfa-token-that-nobody-has-at-all\n"),
    "holds a key": _content(b"-----BEGIN PRIVATE KEY-----\n"),
    "has too many tokens": _content(b"".join(b"one-of-too-many-%06d\n" % number for number in range(65))),
    "can be read by all": _open_to_all,
    "is gone": lambda path: path.unlink(missing_ok=True),
}


@step(StepKind.ACT, weight=4, needs="tokens")
async def token_file_spoil(doing: Doing) -> None:
    """A node's file of tokens cannot be used for a while: the tokens that it had stay in force, and the status names
    the file."""
    node, role = _running(doing), doing.chance.choice(ROLES)
    if node is None:
        return
    credentials = _credentials(doing.world.clusters[node.cluster])
    what = doing.chance.choice(list(TOKENS_SPOILED))
    async with credentials.lock:
        path = credentials.node_file(node.directory, role)
        shown = credentials.shown[role]

        async def check() -> None:
            await _must_say(doing, node, shown, "known", f"although its file {what}")

        await _spoiled(
            doing, node, f"{path.name} of {node.name} {what}", lambda: TOKENS_SPOILED[what](path), check,
            lambda: credentials.write_tokens(node.directory, role),
        )  # fmt: skip


async def _spoiled(
    doing: Doing, node: WorldNode, what: str, spoil: Callable[[], object], check: Any, mend: Callable[[], object]
) -> None:
    """Leave a file of a node unusable for a while. As long as its process lives, the node names it and `check` holds;
    one that starts meanwhile may refuse to."""

    def undo() -> None:
        mend()
        start_again(node)

    spoil()
    waiting = asyncio.ensure_future(for_a_while(doing, what, undo, doing.chance.choice(CUT_S) + NOTICED_S))
    boots = node.machine.boots
    try:
        _hang_up(doing, node)
        await asyncio.sleep(NOTICED_S / 2)
        if node.running and boots == node.machine.boots:
            answer = await ask(doing, node, "/admin/cluster")
            same = boots == node.machine.boots
            if answer is not None and answer.done and same and not waiting.done():
                warnings = answer.body["warnings"]
                if not any(NOT_IN_FORCE in each for each in warnings):
                    raise WrongAnswer(f"{what}, and its status does not say so: {warnings}")
                await check()
    finally:
        await waiting
    _hang_up(doing, node)


@step(StepKind.ACT, weight=2, needs="tokens")
async def token_refuse(doing: Doing) -> None:
    """Requests without a token, with one that nobody has, and with one of too little a role are refused so."""
    node = _running(doing)
    if node is None:
        return
    credentials = _credentials(doing.world.clusters[node.cluster])
    path, body = "/admin/cluster/reseed", {"dry_run": True}
    async with credentials.lock:
        cases = {"": "unauthorized", UNKNOWN: "unauthorized"}
        cases |= {credentials.shown[role]: "forbidden" for role in ROLES if role != "admin"}
        for token, wanted in cases.items():
            answer = await ask(doing, node, path, body, token=token, allowed={wanted})
            if answer is not None and answer.reason != wanted and (answer.done or answer.reason == "unauthorized"):
                raise WrongAnswer(f"{node.name} answers {answer.status} {answer.reason} to token {token!r}: {wanted}")


# -- certificates -----------------------------------------------------------------------------------------------------


async def _serial(doing: Doing, node: WorldNode) -> int | None:
    """The number of the certificate that a node shows; None if it shows none."""
    context = _credentials(doing.world.clusters[node.cluster]).client
    loop, host = asyncio.get_running_loop(), node.machine.address
    try:
        async with asyncio.timeout(NOTICED_S):
            transport, _ = await loop.create_connection(asyncio.Protocol, host, ADMIN_PORT, ssl=context)
    except (OSError, ssl.SSLError, TimeoutError):
        return None
    found: dict[str, Any] = transport.get_extra_info("peercert")
    transport.abort()
    return int(found["serialNumber"], 16)


async def _must_show(doing: Doing, node: WorldNode, boots: int, serials: set[int], why: str) -> None:
    shown = await _serial(doing, node)
    if shown is not None and boots == node.machine.boots and shown not in serials:
        raise WrongAnswer(f"{node.name} shows certificate {shown} and not {sorted(serials)}, {why}")


@step(StepKind.ACT, weight=3, needs="tls")
async def certificate_renew(doing: Doing) -> None:
    """Key and certificate of a node are replaced, one after the other; connections that begin later show them."""
    node = doing.node()
    assert node is not None
    credentials = _credentials(doing.world.clusters[node.cluster])
    async with credentials.lock:
        pair, number = credentials.next_pair(node.name, node.machine.address)
        replace(node.directory / made.SECRETS / "node.key", pair.key)

        def complete() -> None:
            credentials.put_pair(node.directory, pair)
            start_again(node)

        what = f"{node.name} has another key, and its certificate is on its way"
        await for_a_while(doing, what, complete, doing.chance.choice((0.0, 0.0, 1.0, 4.0)))
        boots = node.machine.boots
        _hang_up(doing, node)
        await asyncio.sleep(NOTICED_S)
        if node.running and boots == node.machine.boots:
            await _must_show(doing, node, boots, {number}, "which was replaced")


@step(StepKind.ACT, weight=2, needs="tls")
async def certificate_expire(doing: Doing) -> None:
    """A node's certificate expires while it shows it, and is then replaced. The node goes on, and its status says when;
    a node that starts meanwhile refuses to."""
    node = _running(doing)
    if node is None:
        return
    credentials = _credentials(doing.world.clusters[node.cluster])
    async with credentials.lock:
        kept = credentials.pair_of(node.name, node.machine.address)
        last_s = node.machine.wall_ns() // SECOND + doing.chance.choice((4, 8, 20))
        last = datetime.fromtimestamp(last_s, UTC)
        credentials.put_pair(
            node.directory, credentials.trust.current.issue(1, node.cluster, node.name, node.machine.address, last)
        )

        def renew() -> None:
            credentials.put_pair(node.directory, kept)
            start_again(node)

        what = f"the certificate of {node.name} expires at {last:%H:%M:%S}"
        waiting = asyncio.ensure_future(for_a_while(doing, what, renew, last_s - node.machine.wall_ns() / SECOND + 4.0))
        boots = node.machine.boots
        try:
            _hang_up(doing, node)
            await asyncio.sleep(NOTICED_S)
            while not waiting.done() and node.running and boots == node.machine.boots:
                wall_ns = [node.machine.wall_ns()]
                answer = await ask(doing, node, "/admin/cluster")
                wall_ns.append(node.machine.wall_ns())
                same = boots == node.machine.boots and not waiting.done()
                if answer is None or not answer.done or not same:
                    break
                wanted = {"has expired" if at >= last_s * SECOND else "expires" for at in wall_ns}
                told = [each for each in answer.body["warnings"] if f"tls.certificate of node {node.name}" in each]
                if not any(f"{words} on" in each for each in told for words in wanted):
                    raise WrongAnswer(f"{what}, and its status says {told} at {wall_ns}")
                await asyncio.sleep(1.0)
        finally:
            await waiting
        _hang_up(doing, node)


@step(StepKind.ACT, weight=1, needs="tls")
async def authority_rotate(doing: Doing) -> None:
    """Another authority is believed by every node of every cluster, then signs all certificates, then is the only
    one."""
    clusters = list(doing.world.clusters.values())
    async with contextlib.AsyncExitStack() as locks:
        for cluster in clusters:
            await locks.enter_async_context(_credentials(cluster).lock)
        trust = _credentials(clusters[0]).trust
        following = trust.next()
        await _believe(doing, clusters)
        trust.current = following
        issued = {}
        for node in doing.world.nodes:
            credentials = _credentials(doing.world.clusters[node.cluster])
            pair, issued[node.name] = credentials.next_pair(node.name, node.machine.address)
            credentials.put_pair(node.directory, pair)
            _hang_up(doing, node)
            await asyncio.sleep(doing.chance.choice((0.0, 0.0, 0.5)))
        await _believe(doing, clusters)
        trust.believed = [following]
        await _believe(doing, clusters)
        for node in doing.world.nodes:
            if node.running:
                boots = node.machine.boots
                await _must_show(doing, node, boots, {issued[node.name]}, "since an authority follows another")
                answer = await ask(doing, node, "/admin/cluster")
                if answer is not None and answer.done and boots == node.machine.boots:
                    mistakes = [each for each in answer.body["warnings"] if NOT_IN_FORCE in each]
                    if mistakes:
                        raise WrongAnswer(f"{node.name} after an authority has followed another: {mistakes}")


async def _believe(doing: Doing, clusters: list[WorldCluster]) -> None:
    """Write whom nodes and people believe, and what people show, and wait until all have read it."""
    for cluster in clusters:
        credentials = _credentials(cluster)
        credentials.distribute_certificates()
        for node in cluster.nodes.values():
            credentials.put_authorities(node.directory)
            _hang_up(doing, node)
    doing.tell(f"{len(_credentials(clusters[0]).trust.believed)} authorities are believed")
    await asyncio.sleep(NOTICED_S)


CERTIFICATES_SPOILED: Final = (
    "has expired",
    "is another node's",
    "is of another authority",
    "is none",
    "is gone",
    "has another key",
    "has a key that can be read by all",
)


def _spoil_certificate(credentials: Credentials, node: WorldNode, what: str) -> None:
    directory, address = node.directory / made.SECRETS, node.machine.address
    authority = credentials.trust.current
    match what:
        case "has expired":
            pair = authority.issue(1, node.cluster, node.name, address, made.EXPIRED)
            credentials.put_pair(node.directory, pair)
        case "is another node's":
            credentials.put_pair(node.directory, authority.issue(1, node.cluster, "another", address))
        case "is of another authority":
            stranger = made.authority("another authority")
            credentials.put_pair(node.directory, stranger.issue(1, node.cluster, node.name, address))
        case "is none":
            replace(directory / "node.crt", b"nonsense\n", 0o644)
        case "is gone":
            (directory / "node.crt").unlink()
        case "has another key":
            replace(directory / "node.key", authority.issue(1, node.cluster, "another", address).key)
        case _:
            _open_to_all(directory / "node.key")


@step(StepKind.ACT, weight=3, needs="tls")
async def certificate_spoil(doing: Doing) -> None:
    """A node's certificate or key cannot be used for a while: the node goes on showing those that it had, and its
    status names the file."""
    node = _running(doing)
    if node is None:
        return
    credentials = _credentials(doing.world.clusters[node.cluster])
    what = doing.chance.choice(CERTIFICATES_SPOILED)
    async with credentials.lock:
        boots, before = node.machine.boots, await _serial(doing, node)
        if before is None:
            return
        kept = credentials.pair_of(node.name, node.machine.address)

        async def check() -> None:
            await _must_show(doing, node, boots, {before}, f"although the file {what}")

        await _spoiled(
            doing, node, f"the certificate of {node.name} {what}",
            lambda: _spoil_certificate(credentials, node, what), check,
            lambda: credentials.put_pair(node.directory, kept),
        )  # fmt: skip
