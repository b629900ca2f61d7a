"""Claims about HTTP with TLS: a listener's answers to wrong protocols and certificates, and the checks of clients and
sources."""

from __future__ import annotations

import asyncio
import http.client
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests

from isthmus.config.settings import Address, ListenSettings
from isthmus.node.client_api.queue_fetch import QueueRoutes
from isthmus.node.http.application import HttpApplication, Request, text_reply
from isthmus.node.http.authorization import Guard, TokenRole
from isthmus.node.http.durations import RequestDurations
from isthmus.node.http.listener import Listener, ListenerTls
from isthmus.node.http.responses import Reply
from isthmus.queues.leases import Session
from isthmus.queues.long_poll import Until
from isthmus.queues.window_rules import Item
from isthmus.queues.wire import FetchReply, FetchRequest, ObjectReply, ObjectRequest, encode_asking, encode_request
from isthmus.repl.http.client import HttpPeer, PeerCredentials, session
from isthmus.repl.http.client import HttpRefused as PeerRefused
from isthmus.repl.model.errors import PeerFault
from isthmus.repl.model.keys import Key
from isthmus.repl.security.tls import client_contexts, server_contexts
from tests.support.blocking_peer import PeerOnLoop
from tests.support.open_access import EVERYBODY
from tests.support.tls_files import CertificateFolder
from tests.support.waiting import PATIENCE_S
from tests.unit.node.http.test_authorization import settings_of


class EmptySource:
    """A source that gives every client an empty batch."""

    async def fetch(self, queue: str, request: FetchRequest, until: Until) -> FetchReply:
        return FetchReply(b"\x02" * 16, "c", 3, b"", 30_000, 1, "serving", ())

    def is_for_riak(self, name: str) -> bool:
        return True

    async def pop(self, name: str, render: Callable[[Item], Awaitable[bytes]], until: Until) -> bytes | None:
        return None

    def link(self, name: str) -> dict[str, Any]:
        raise AssertionError("no sink asks before it fetches here")

    async def object_of(self, name: str, wanted: ObjectRequest) -> ObjectReply:
        return ObjectReply(b"\x02" * 16, "c", b"")


class CertificateNamesApp(HttpApplication):
    """Answers with the nodes that the client's certificate names; large bodies at /large."""

    def __init__(self, *, certified: bool = False) -> None:
        super().__init__(EVERYBODY, RequestDurations())
        self.router.add("GET", "/names", self._names)
        self.router.add("GET", "/large", self._large)
        self.routes = QueueRoutes(EmptySource(), EmptySource(), self, certified=certified)

    async def _names(self, request: Request) -> Reply:
        return text_reply(",".join(sorted(name.uri() for name in request.peer_names)))

    async def _large(self, request: Request) -> Reply:
        return Reply(200, [], bytes(5_000_000))


@contextmanager
def serving(tls: ListenerTls | None, face: HttpApplication | None = None) -> Iterator[int]:
    """A listener in a thread of its own, on the loop that nodes use; its port."""
    import uvloop

    listener = Listener("http", Address("0.0.0.0", 0), ListenSettings(), tls)
    loop = uvloop.new_event_loop()
    loop.run_until_complete(listener.start(face or CertificateNamesApp()))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield int(listener.url.rpartition(":")[2])
    finally:
        asyncio.run_coroutine_threadsafe(listener.stop(1.0), loop).result(PATIENCE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def tls_of(
    folder: CertificateFolder, *, also_plain: bool = False, asked: ssl.VerifyMode = ssl.CERT_OPTIONAL
) -> ListenerTls:
    """The TLS settings of node a's listeners."""
    return ListenerTls(server_contexts(folder.files("a"), asked).current, also_plain)


def get(folder: CertificateFolder, url: str, pair: str | None = None, cluster: str = "") -> requests.Response:
    """Send one request as a client that shows `pair` and expects `cluster`."""
    contexts = client_contexts(folder.files(pair), check_host=not cluster).current
    with session(access=PeerCredentials(contexts, cluster)) as client:
        return client.get(url, timeout=PATIENCE_S)


def asked(folder: CertificateFolder, port: int, cluster: str, pair: str | None) -> bytes:
    """Fetch one object as the sink of `cluster` does, showing `pair`."""
    contexts = client_contexts(folder.files(pair), check_host=False).current
    peer = PeerOnLoop(f"https://127.0.0.1:{port}", 1, PeerCredentials(contexts))
    body = encode_asking(ObjectRequest(b"w" * 16, cluster, Key(b"default", b"b", b"k")))
    try:
        return peer.post(
            "/queues/q/object", body, media_type="application/msgpack", timeout_ms=10_000, limit_bytes=1_000
        )
    finally:
        peer.abort()


def fetch(
    folder: CertificateFolder, port: int, cluster: str, pair: str | None, access: dict[str, Any] | None = None
) -> bytes:
    """A fetch as the sink of `cluster` sends it, which shows `pair`."""
    contexts = client_contexts(folder.files(pair), check_host=False).current
    peer = PeerOnLoop(f"https://127.0.0.1:{port}", 1, PeerCredentials(contexts, **{"cluster": "c", **(access or {})}))
    body = encode_request(FetchRequest(Session(b"w" * 16, "n", b"i" * 8, 0), cluster))
    try:
        return peer.post(
            "/queues/q/fetch", body, media_type="application/msgpack", timeout_ms=10_000, limit_bytes=1_000_000
        )
    finally:
        peer.abort()


def test_a_tls_listener_passes_on_the_names_of_the_client_certificate(folder: CertificateFolder) -> None:
    """The handler gets the names in the client's certificate; with and without a certificate, small and large
    answers."""
    with serving(tls_of(folder)) as port:
        url = f"https://127.0.0.1:{port}"
        assert get(folder, f"{url}/names").text == ""
        assert get(folder, f"{url}/names", "b").text == "isthmus://c/b"
        assert len(get(folder, f"{url}/large").content) == 5_000_000


def test_a_client_with_the_wrong_scheme_gets_a_reason(folder: CertificateFolder) -> None:
    """Plain text to a port with TLS gets a refusal in plain text; TLS to one without, an error that names the cause."""
    with serving(tls_of(folder)) as port:
        answer = requests.get(f"http://127.0.0.1:{port}/names", timeout=PATIENCE_S)
        assert (answer.status_code, answer.headers["X-Isthmus-Reason"]) == (400, "tls")
        assert "write https://" in answer.text
    with serving(None) as port, pytest.raises(PeerFault, match="TLS: the other end does not speak TLS"):
        fetch(folder, port, "west", "west-1")
    with serving(tls_of(folder, also_plain=True)) as port:
        assert requests.get(f"http://127.0.0.1:{port}/names", timeout=PATIENCE_S).status_code == 200
        assert get(folder, f"https://127.0.0.1:{port}/names").status_code == 200


def test_a_listener_that_requires_certificates_refuses_clients_without(folder: CertificateFolder) -> None:
    """Without a certificate, or with one of another authority, the connection ends; with a valid one it stays up."""
    with serving(tls_of(folder, asked=ssl.CERT_REQUIRED)) as port:
        url = f"https://127.0.0.1:{port}/names"
        assert get(folder, url, "client").status_code == 200
        for pair in (None, "stranger", "expired"):
            with pytest.raises(OSError, match=r"ALERT|[Cc]onnection|EOF|certificate"):
                get(folder, url, pair)


@pytest.mark.parametrize(
    ("pair", "cluster", "words"),
    [
        ("a", "west", "must name isthmus://west/NODE; it names isthmus://c/a"),
        ("client", "c", "it names nothing"),
        ("stranger", "c", "of no authority that we know"),
        ("expired", "c", "has expired"),
    ],
)
def test_a_sink_verifies_the_cluster_it_fetches_from(
    folder: CertificateFolder, pair: str, cluster: str, words: str
) -> None:
    """The source's certificate must be valid and name the cluster that the config expects."""
    tls = ListenerTls(server_contexts(folder.files(pair), ssl.CERT_OPTIONAL).current, False)
    with serving(tls) as port, pytest.raises(PeerFault) as error:
        fetch(folder, port, "west", "west-1", {"cluster": cluster})
    assert words in str(error.value)


def test_a_host_is_checked_where_no_cluster_is_named(folder: CertificateFolder) -> None:
    """When no cluster is expected the certificate must name the host: it names 127.0.0.1, and not 127.0.0.2."""
    with serving(tls_of(folder)) as port:
        assert get(folder, f"https://localhost:{port}/names").status_code == 200
        assert get(folder, f"https://127.0.0.1:{port}/names").status_code == 200
        with pytest.raises(OSError, match="mismatch"):
            get(folder, f"https://127.0.0.2:{port}/names")


def test_a_source_verifies_the_cluster_that_fetches(folder: CertificateFolder) -> None:
    """A sink whose certificate names the cluster that it claims to be gets its batch; all others get 403."""
    with serving(tls_of(folder), CertificateNamesApp(certified=True)) as port:
        assert fetch(folder, port, "west", "west-1")
        for cluster, pair in (("west", "b"), ("c", "west-1"), ("west", None), ("west", "client")):
            for ask in (fetch, asked):
                with pytest.raises(PeerRefused) as refused:
                    ask(folder, port, cluster, pair)
                assert (refused.value.status, refused.value.reason) == (403, "wrong-certificate")
        assert asked(folder, port, "west", "west-1")


def test_a_source_verifies_the_riak_that_fetches(folder: CertificateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Riak's fetch needs a certificate of a cluster of the owner's name, where sinks need one of theirs."""
    with serving(tls_of(folder), CertificateNamesApp(certified=True)) as port:
        url = f"https://127.0.0.1:{port}/queuename/q"
        for pair in ("west-1", None):
            answer = get(folder, url, pair)
            assert (answer.status_code, answer.headers["x-isthmus-reason"]) == (403, "wrong-certificate")
        monkeypatch.setattr("isthmus.node.client_api.queue_fetch.RIAK_NAME", "west")
        assert get(folder, url, "west-1").content == b"\0"


def test_a_sink_shows_its_token_as_it_is_now(folder: CertificateFolder) -> None:
    """Each fetch sends the current token: the role `replicate` suffices, `write` and no token do not."""
    face = CertificateNamesApp()
    face.guard = Guard("http", settings_of(folder))
    shown: list[str] = []

    def token() -> str:
        return shown[-1]

    with serving(tls_of(folder), face) as port:
        shown.append(folder.token(TokenRole.REPLICATE))
        assert fetch(folder, port, "west", "west-1", {"token": token})
        shown.append(folder.token(TokenRole.WRITE))
        with pytest.raises(PeerRefused, match="this needs a token of the role replicate or admin"):
            fetch(folder, port, "west", "west-1", {"token": token})
        with pytest.raises(PeerRefused, match="no token was shown"):
            fetch(folder, port, "west", "west-1")


@pytest.mark.parametrize("dial", [HttpPeer, PeerOnLoop])
def test_a_waiting_fetch_over_tls_is_cut_off(
    folder: CertificateFolder, dial: type[HttpPeer] | type[PeerOnLoop]
) -> None:
    """A stop ends a fetch that waits for its answer at once, with an error that its caller expects."""
    face = CertificateNamesApp()
    asked, left = threading.Event(), threading.Event()

    async def wait(request: Request) -> Reply:
        await request.body()
        asked.set()
        await request.disconnected()
        left.set()
        return text_reply("late")

    face.router.add("POST", "/wait", wait)
    with serving(tls_of(folder), face) as port:
        contexts = client_contexts(folder.files("b"), check_host=True).current
        peer = dial(f"https://127.0.0.1:{port}", 1, PeerCredentials(contexts))
        cutter = threading.Thread(target=lambda: (asked.wait(PATIENCE_S), peer.abort()))
        cutter.start()
        with pytest.raises(PeerFault):
            peer.post("/wait", b"", media_type="text/plain", timeout_ms=20_000, limit_bytes=10)
        cutter.join()
        assert left.wait(PATIENCE_S)


@pytest.mark.parametrize("dial", [HttpPeer, PeerOnLoop])
def test_a_token_that_belongs_to_tls_does_not_travel_in_the_clear(
    folder: CertificateFolder, dial: type[HttpPeer] | type[PeerOnLoop]
) -> None:
    """A peer that is reached over http://, where TLS is configured (a list of nodes may name such), sees no token."""
    face = CertificateNamesApp()
    seen: list[bytes | None] = []

    async def look(request: Request) -> Reply:
        seen.append(request.header(b"authorization"))
        return text_reply("seen")

    face.router.add("POST", "/look", look)
    contexts = client_contexts(folder.files("b"), check_host=True).current
    with serving(tls_of(folder, also_plain=True), face) as port:
        for scheme, how in (("http", contexts), ("https", contexts), ("http", None)):
            peer = dial(f"{scheme}://127.0.0.1:{port}", 1, PeerCredentials(how, token=lambda: "t" * 20))
            peer.post("/look", b"", media_type="text/plain", timeout_ms=10_000, limit_bytes=10)
            peer.abort()
    assert seen == [None, b"Bearer " + b"t" * 20, b"Bearer " + b"t" * 20]


def test_old_versions_of_tls_are_refused(folder: CertificateFolder) -> None:
    """1.1 is refused; 1.2 and 1.3 are taken."""
    with serving(tls_of(folder)) as port:
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            context = folder.client()
            context.minimum_version = context.maximum_version = version
            connection = http.client.HTTPSConnection("localhost", port, timeout=PATIENCE_S, context=context)
            connection.request("GET", "/names")
            assert connection.getresponse().status == 200
            connection.close()
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname = False
        old.verify_mode = ssl.CERT_NONE
        old.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        with socket.create_connection(("127.0.0.1", port)) as plain, pytest.raises(ssl.SSLError):
            old.wrap_socket(plain)


def test_a_slow_or_leaving_client_over_tls_holds_nothing(folder: CertificateFolder) -> None:
    """A client that sends half a request and closes is forgotten, and the listener ends in time."""
    context = folder.client()
    with serving(tls_of(folder)) as port:
        for last in (b"", b"GET /names HTTP/1.1\r\nHost: x\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", port)) as plain:
                wrapped = context.wrap_socket(plain, server_hostname="localhost")
                wrapped.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n" + last)
                wrapped.close()
        assert get(folder, f"https://127.0.0.1:{port}/names").status_code == 200


async def test_a_zookeeper_session_uses_tls(folder: CertificateFolder) -> None:
    """The client shows its own certificate and checks the server's, including its host; failures are reported in
    words."""
    from isthmus.repl.metastore.zookeeper import ZooKeeperMetastore
    from isthmus.repl.model.errors import LocalFault

    seen: list[tuple[str, bytes]] = []
    stop = threading.Event()

    def serve(pair: str, listening: socket.socket) -> None:
        context = server_contexts(folder.files(pair), ssl.CERT_REQUIRED).current()
        listening.settimeout(0.1)
        while not stop.is_set():
            try:
                plain, _ = listening.accept()
            except TimeoutError:
                continue
            try:
                plain.settimeout(PATIENCE_S)
                with context.wrap_socket(plain, server_side=True) as wrapped:
                    names: Any = wrapped.getpeercert()
                    seen.append((str(names["subjectAltName"][0][1]), wrapped.recv(100)))
            except OSError:
                plain.close()

    async def connect(port: int) -> str:
        tls = client_contexts(folder.files("b"), check_host=True).current
        metastore = ZooKeeperMetastore(
            f"127.0.0.1:{port}", "/r", "c", session_timeout_ms=2000, connect_timeout_ms=700, tls=tls
        )
        with pytest.raises(LocalFault) as error:
            await metastore.start(lambda state: None)
        return str(error.value)

    for pair in ("a", "stranger"):
        stop.clear()
        with socket.create_server(("127.0.0.1", 0)) as listening:
            thread = threading.Thread(target=serve, args=(pair, listening))
            thread.start()
            try:
                sentence = await connect(listening.getsockname()[1])
            finally:
                stop.set()
                thread.join()
        if pair == "a":
            name, first = seen[0]
            assert name == "isthmus://c/b"
            assert first[4:8] == bytes(4), "ZooKeeper's connect request: its length, then version 0"
        else:
            assert "the last TLS handshake" in sentence
            assert "certificate verify failed" in sentence


def test_path_of_the_folder_is_private(folder: CertificateFolder) -> None:
    """Keys and tokens that `isthmus dev` makes can be read by their owner alone, certificates by all."""
    modes = {path.name: path.stat().st_mode & 0o777 for path in Path(folder.path).iterdir()}
    assert {mode for name, mode in modes.items() if name.endswith((".key", ".token"))} == {0o600}
    assert modes["ca.crt"] == 0o644
