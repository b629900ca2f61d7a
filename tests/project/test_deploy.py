"""The files of `deploy/` for containers and ZooKeeper: files they name exist, and nodes accept their configuration."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from isthmus.config.loader import load_file
from isthmus.node.cli import main as cli
from isthmus.node.cli.exit_codes import Exit

DEPLOY = Path(__file__).parents[2] / "deploy"
NODES = sorted((DEPLOY / "container").glob("*.toml"))


def services() -> dict[str, Any]:
    """The services of the compose file."""
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "container" / "compose.yaml").read_text())["services"]
    return found


def test_each_node_of_the_compose_file_has_its_config() -> None:
    """Two clusters of three nodes: each service mounts the file of its name, and depends on its own ZooKeepers."""
    nodes = {name: service for name, service in services().items() if not name.startswith("zk-")}
    assert sorted(nodes) == [file.stem for file in NODES]
    for name, service in nodes.items():
        assert service["volumes"][0].startswith(f"./{name}.toml:")
        assert all(server.startswith(f"zk-{name.rpartition('-')[0]}-") for server in service["depends_on"])


@pytest.mark.parametrize("file", NODES, ids=lambda file: file.stem)
def test_a_node_of_the_compose_file_names_services_alone(file: Path) -> None:
    """Its file has no fault; ZooKeepers, peers and the advertised host are services of the same compose file."""
    settings = load_file(file)
    assert settings.node.name == file.stem == settings.listen.advertise
    names = re.findall(r"//([\w-]+):|(zk-[\w-]+):2181", file.read_text())
    assert len(names) >= 7
    assert {one or other for one, other in names} <= set(services())


def test_production_page_writes_node_files_that_the_unit_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its `isthmus node init` make files without faults, under the name and with the data that the unit expects, also
    after the folder was copied."""
    page = (DEPLOY.parent / "docs" / "production.md").read_text().replace("\\\n", "")
    lines = re.findall(r"^isthmus (node init .+)$", page, re.MULTILINE)
    (checked,) = re.findall(r"^isthmus (config check .+)$", page, re.MULTILINE)
    made, copied = tmp_path / "made", tmp_path / "copied"
    made.mkdir()
    monkeypatch.chdir(made)
    assert [cli.main(shlex.split(line)) for line in lines] == [Exit.OK] * 6
    made.rename(copied)
    assert cli.main(shlex.split(checked.replace("/etc/isthmus", str(copied)))) == Exit.OK
    settings = load_file(copied / "east-1.toml")
    assert (settings.node.name, settings.node.cluster) == ("east-1", "east")
    assert settings.metastore.hosts == "zk1:2181,zk2:2181,zk3:2181"
    unit = (DEPLOY / "systemd" / "isthmus@.service").read_text()
    assert "StateDirectory=isthmus\n" in unit
    assert Path(settings.node.data_dir).parent == Path("/var/lib/isthmus")


def test_the_unit_points_to_no_file_that_nothing_installs() -> None:
    """Pages are not part of an installation."""
    unit = (DEPLOY / "systemd" / "isthmus@.service").read_text()
    assert "\nDocumentation=" not in unit


def test_zookeepers_keep_snapshots_and_log() -> None:
    """The image has a directory for each; a log in an anonymous volume would be lost with the container."""
    for name, service in services().items():
        if name.startswith("zk-"):
            assert [volume.partition(":")[::2] for volume in service["volumes"]] == [
                (name, "/data"),
                (f"{name}-log", "/datalog"),
            ]


def test_published_ports_are_on_loopback() -> None:
    """Without TLS and tokens nothing of the compose file is reachable from other machines."""
    published = [port for service in services().values() for port in service.get("ports", ())]
    assert len(published) == 4
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_zookeeper_s_clients_must_use_tls() -> None:
    """The sample has a secure port, no plain one, and asks clients for a certificate."""
    lines = (DEPLOY / "zookeeper" / "zoo.cfg").read_text().splitlines()
    keys = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    assert keys["secureClientPort"] == "2281"
    assert "clientPort" not in keys
    assert keys["ssl.clientAuth"] == "need"
