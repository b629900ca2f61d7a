"""The documented steps to TLS (docs/security.md), walked on real processes under load."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.node.local import dev_certificates
from isthmus.repl.security.tls import NodeName
from tests.system.local.real_nodes import Client, RealNode, Writer, eventually, real_clusters

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STEPS = {
    "plain": "",
    "1": 'cluster = "allow"\nhttp = "allow"\nadmin = "allow"\n',
    "2": 'cluster = "prefer"\nhttp = "allow"\nadmin = "allow"\n',
    "3": "",
}
"""Step -> lines of [tls] beside the files; "plain" has no files."""


def test_nodes_that_no_peer_lists_are_fetched_from_during_all_steps(tmp_path: Path) -> None:
    """Two clusters of three, each of whose sinks lists one node of the other. All steps are carried out, node by node,
    under load: after each step every acknowledged write is on the other side, and no sink skips a node."""
    security = tmp_path / "security"
    with real_clusters(tmp_path, {"east": 3, "west": 3}) as (server, clusters):
        nodes = [node for each in clusters.values() for node in each]
        dev_certificates.make_certificates(security, [NodeName(node.cluster, node.name) for node in nodes])
        client = Client(security / "ca.crt")

        def write(node: RealNode, step: str) -> None:
            other = clusters["west" if node.cluster == "east" else "east"][0]
            url = client.url(other, tls=step in ("2", "3"))
            tls = ""
            if step != "plain":
                pair = f'certificate = "{security}/{node.name}.crt"\nkey = "{security}/{node.name}.key"\n'
                tls = f'[tls]\n{pair}authority = "{security}/ca.crt"\n{STEPS[step]}'
            node.write(
                server.hosts,
                "[replication]\nfactor = 3\nmin_isr = 2\npartitions = 6\n"
                f'[[queues]]\nname = "to-{other.cluster}"\n[sink]\ndiscovery_interval = "1s"\n'
                f'[[sink.peers]]\nurl = "{url}"\nqueue = "to-{node.cluster}"\ncluster = "{other.cluster}"\n{tls}',
            )

        tls_now = dict.fromkeys((node.name for node in nodes), False)

        def put(number: int) -> bool:
            node = nodes[number % len(nodes)]
            url = client.url(node, tls=tls_now[node.name])
            return client.request("PUT", f"{url}/buckets/b/keys/k{number}", b"v%d" % number)[0] == 204

        for node in nodes:
            write(node, "plain")
            node.start()
        for node in nodes:
            eventually(lambda node=node: client.online(node), f"{node.name} online")  # type: ignore[misc]
        with Writer(put) as writer:
            for step in STEPS:
                for node in nodes if step != "plain" else ():
                    write(node, step)
                    tls_now[node.name] = step in ("1", "2", "3")
                    assert node.stop() == 0
                    node.start()
                    eventually(lambda node=node: client.online(node, tls=True), f"{node.name} after step {step}")  # type: ignore[misc]
                seen = list(writer.acknowledged)
                _everywhere(client, clusters, seen, tls=step != "plain", step=step)
                _all_links_run(client, nodes, tls=step != "plain", step=step)
        assert len(writer.acknowledged) > 100


def _everywhere(
    client: Client, clusters: dict[str, list[RealNode]], numbers: list[int], *, tls: bool, step: str
) -> None:
    for cluster, (node, *_) in clusters.items():
        missing = list(numbers)

        def none_missing(node: RealNode = node, missing: list[int] = missing) -> bool:
            base = client.url(node, tls=tls)
            missing[:] = [n for n in missing if client.request("GET", f"{base}/buckets/b/keys/k{n}")[0] != 200]
            return not missing

        eventually(none_missing, f"all of {len(numbers)} keys in {cluster} after step {step}")


def _all_links_run(client: Client, nodes: list[RealNode], *, tls: bool, step: str) -> None:
    for node in nodes:

        def runs(node: RealNode = node) -> bool:
            links = client.document(node, "/admin/sink", tls)["sinks"]
            return len(links) == 3 and {link["state"] for link in links} == {"running"}

        eventually(runs, f"three links of {node.name} after step {step}")
