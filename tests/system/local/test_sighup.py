"""SIGHUP to a real node: files of tokens and the level of the log are reloaded, and the node keeps running."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.system.local.real_nodes import Client, eventually, real_clusters


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_hang_up_ends_no_node_and_has_files_read_again(tmp_path: Path) -> None:
    """SIGHUP at any time of a node's life does not end it; a faulty config file changes nothing and is logged. The
    log's first line names the program and version, and one line reports readiness."""
    token = tmp_path / "read.token"
    token.write_text("a" * 40 + "\n")
    token.chmod(0o600)
    with real_clusters(tmp_path, {"east": 1}) as (server, clusters):
        (node,) = clusters["east"]
        client = Client()
        tables = f'[replication]\nfactor = 1\npartitions = 3\n[tokens]\nread = "{token}"\nhttp_open = "write"\n'
        node.write(server.hosts, tables)
        node.start()
        eventually(lambda: node.log.exists() and node.events("node.starting"), "the first line")
        node.send(signal.SIGHUP)  # while it starts
        eventually(lambda: node.events("node.ready"), "ready")
        started = node.events("node.starting")[0]
        assert (started["pid"], started["file"]) == (node.process.pid if node.process else 0, str(node.file))
        assert started["version"]
        assert node.events("node.ready")[0]["sentence"] == "ready: 3 partitions served"

        node.file.write_text(node.file.read_text().replace('format = "json"', 'format = "json"\nlevel = "debug"'))
        token.write_text("b" * 40 + "\n")
        node.send(signal.SIGHUP)
        eventually(lambda: len(node.events("node.reloaded")) == 1, "read again")
        (told,) = node.events("node.reloaded")
        assert (told["log_level"], told["troubles"], told["changed_settings_need_a_restart"]) == ("debug", [], False)

        good = node.file.read_text()
        node.file.write_text(good + "nonsense = 1\n")
        token.write_text("short\n")
        node.send(signal.SIGHUP)
        eventually(lambda: len(node.events("node.reloaded")) == 2, "read again")
        troubles = node.events("node.reloaded")[1]["troubles"]
        assert any("nonsense" in each for each in troubles), troubles
        assert node.runs()

        node.file.write_text(good.replace("partitions = 3", "partitions = 4"))
        node.send(signal.SIGHUP)
        eventually(lambda: len(node.events("node.reloaded")) == 3, "read again")
        assert node.events("node.reloaded")[2]["changed_settings_need_a_restart"] is True
        assert client.request("PUT", f"{client.url(node)}/buckets/b/keys/k", b"v")[0] == 204
        assert node.stop() == 0
