"""`isthmus node init`: the config file of a new node, with everything that a node of a pair of clusters needs.

Certificates and tokens are files of two directories. What lacks there is made, as by `isthmus dev certs` and `isthmus
dev tokens`; what is there is used as it is, such as certificates of an organisation's own authority.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from isthmus.config.loader import ConfigError, Fault, load_text
from isthmus.config.sample import sample_text
from isthmus.config.settings import Settings
from isthmus.config.validation import check_name
from isthmus.config.warnings import warnings_of
from isthmus.node.cli.output import echo_json, output_option, printable
from isthmus.node.cli.parameters import Count, RenamedOption, checking, with_options
from isthmus.repl.model.errors import BadInput, LocalFault

ID_MAX: Final = 2**31 - 1
"""Largest id of a node, as in its file."""

DIRECTORY = click.Path(path_type=Path, file_okay=False)

OPTIONS: Final = with_options(
    click.argument("file", type=click.Path(path_type=Path)),
    click.option("--name", required=True, help="The node's name, such as east-1."),
    click.option("--cluster-name", required=True, help="The cluster's name, the same on all its nodes."),
    click.option("--id", "node_id", type=Count(0, ID_MAX), help="Its number; else the digits at the end of its name."),
    click.option("--rack", default="", metavar="NAME", help="Its rack: replicas are spread over racks."),
    click.option("--data-dir", help="Log, store and identity; without it data/NAME beside FILE."),
    click.option("--host", default="127.0.0.1", show_default=True, help="Address of all three listeners."),
    click.option("--advertise", default="", metavar="HOST", help="Address at which others reach them, if not --host."),
    click.option(
        "--port", type=Count(1, 65_533), default=8_097, show_default=True,
        help="Port for nodes; clients use the next one, operators the one after.",
    ),
    click.option("--metastore", default="", metavar="HOST:PORT,...", help="ZooKeeper; without it one in the node."),
    click.option("--metastore-tls", is_flag=True, help="Speak TLS to ZooKeeper, by the files of --tls."),
    click.option(
        "--replication-factor", cls=RenamedOption, old=("--factor",), type=Count(1, 7),
        help="Replicas of each partition; without it 3 with --metastore, else 1.",
    ),
    click.option(
        "--tls", type=DIRECTORY, metavar="DIR",
        help="TLS with ca.crt, NAME.crt and NAME.key of DIR; missing ones are created, with ca.key.",
    ),
    click.option("--tokens", type=DIRECTORY, metavar="DIR", help="ROLE.token files; missing ones are created."),
    click.option("--queue", "queues", multiple=True, metavar="NAME", help="A queue for another cluster; repeatable."),
    click.option("--peer", "peers", nargs=2, multiple=True, metavar="URL QUEUE", help="Fetch from there; repeatable."),
    click.option("--peer-cluster", default="", metavar="NAME", help="The cluster that every --peer must be of."),
    click.option(
        "--peer-token-file", metavar="FILE", help="The token for every --peer; without it --tokens' replicate.token."
    ),
    click.option("--peer-ca", metavar="FILE", help="Authorities of other clusters and clients; without it ca.crt."),
    click.option("--fullsync", is_flag=True, help="Compare with --peer-cluster; repairs go into the first --queue."),
    click.option("--every/--short", default=True, help="With every other key, commented out, or without."),
    output_option,
)  # fmt: skip


@click.command("init", short_help="Write the config file of a new node.")
@OPTIONS
def init(file: Path, output: str, *, every: bool, **given: Any) -> None:
    """Write FILE, the commented config of a new node, which `isthmus node run FILE` starts. An existing FILE stays.

    With --tls, --tokens, --peer and --fullsync it needs no editor. Paths below FILE's folder are written relative to
    it, so that the folder can be copied to the node's machine.

    The config is first checked as by `isthmus config check`; if it has a fault, FILE is not written, and the message
    names the option.
    """
    from isthmus.node.security.credentials import file_faults

    if file.exists():
        raise BadInput(f"{file} exists: name another file, or change that one")
    _check_together(given)
    values = _values(file, given)
    text = sample_text(values, every=every)
    settings = _loaded(text, file)
    made = _make_files(given)
    faults = [Fault(path, 0, message) for path, message in file_faults(settings)]
    if faults:
        raise ConfigError("node init", [_at_option(fault) for fault in faults])
    try:
        with file.open("x", encoding="utf-8") as written:
            written.write(text)
    except FileExistsError:
        raise BadInput(f"{file} exists: name another file, or change that one") from None
    except OSError as error:
        raise LocalFault(f"{file} cannot be written: {(error.strerror or str(error)).lower()}") from error
    _echo(file, settings, made, output)


def _check_together(given: dict[str, Any]) -> None:
    """Raises BadInput for options of which one needs another that is not given."""
    needs = (
        ("--peer-cluster", given["peer_cluster"], "--peer", given["peers"]),
        ("--peer-token-file", given["peer_token_file"], "--peer", given["peers"]),
        ("--peer-ca", given["peer_ca"], "--tls", given["tls"]),
        ("--metastore-tls", given["metastore_tls"], "--tls", given["tls"]),
        ("--fullsync", given["fullsync"], "--peer", given["peers"]),
        ("--fullsync", given["fullsync"], "--peer-cluster", given["peer_cluster"]),
        ("--fullsync", given["fullsync"], "--queue", given["queues"]),
    )
    for option, value, other, needed in needs:
        if value and not needed:
            raise BadInput(f"{option} needs {other}")


def _values(file: Path, given: dict[str, Any]) -> dict[str, Any]:
    """The keys of the file that are set, by path, as `sample_text` takes them."""
    from isthmus.node.http.authorization import TokenRole

    name, port = given["name"], given["port"]
    host = f"[{given['host']}]" if ":" in given["host"] else given["host"]
    number = given["node_id"]
    if number is None:
        ends = re.search("[0-9]{1,9}$", name)
        number = int(ends[0]) if ends else 0
    values: dict[str, Any] = {
        "node.name": name,
        "node.cluster": given["cluster_name"],
        "node.data_dir": given["data_dir"] or f"data/{name}",
        "node.id": number,
        "listen.http": f"{host}:{port + 1}",
        "listen.admin": f"{host}:{port + 2}",
        "listen.cluster": f"{host}:{port}",
        "metastore.hosts": given["metastore"],
        "queues": [{"name": queue} for queue in given["queues"]],
    }
    optional = {
        "node.rack": given["rack"],
        "listen.advertise": given["advertise"],
        "replication.factor": given["replication_factor"],
    }
    values |= {key: value for key, value in optional.items() if value}
    if given["tls"] is not None:
        files = {"certificate": f"{name}.crt", "key": f"{name}.key", "authority": "ca.crt"}
        values |= {f"tls.{key}": _written(file, given["tls"] / each) for key, each in files.items()}
        if given["metastore_tls"]:
            values["tls.metastore"] = True
        if given["peer_ca"]:
            values["tls.peer_authority"] = _written(file, Path(given["peer_ca"]))
    token = given["peer_token_file"]
    if given["tokens"] is not None:
        paths = {role.value: given["tokens"] / f"{role.value}.token" for role in TokenRole}
        values |= {f"tokens.{role}": _written(file, path) for role, path in paths.items()}
        token = token or paths[TokenRole.REPLICATE.value]
    shared = {"cluster": given["peer_cluster"], "token_file": _written(file, Path(token)) if token else ""}
    shared = {key: value for key, value in shared.items() if value}
    values["sink.peers"] = [{"url": url, "queue": queue, **shared} for url, queue in given["peers"]]
    if given["fullsync"]:
        urls = ",".join(dict.fromkeys(url for url, _ in given["peers"]))
        one = {"name": given["peer_cluster"], "urls": urls, "queue": given["queues"][0]}
        values["fullsync"] = [{**one, **shared}]
    return values


def _written(file: Path, path: Path) -> str:
    """A path as the file has it: relative to the file's folder if it lies below, else absolute."""
    folder, whole = os.path.abspath(file.parent), os.path.abspath(path)
    return os.path.relpath(whole, folder) if whole.startswith(f"{folder.rstrip('/')}/") else whole


def _loaded(text: str, file: Path) -> Settings:
    try:
        return load_text(text, file)
    except ConfigError as error:
        raise ConfigError("node init", [_at_option(fault) for fault in error.faults]) from None


def _make_files(given: dict[str, Any]) -> list[str]:
    """Make the missing files of --tls and --tokens; a sentence for each kind that was made. Raises BadInput,
    LocalFault, BadConfig."""
    from isthmus.node.http.authorization import TokenRole
    from isthmus.node.local import dev_certificates
    from isthmus.repl.security.tls import NodeName

    made = []
    if given["tls"] is not None:
        folder, name = given["tls"], given["name"]
        has = {each: (folder / each).exists() for each in (f"{name}.crt", f"{name}.key", "ca.crt", "ca.key")}
        if not (has[f"{name}.crt"] or has[f"{name}.key"]):
            if has["ca.crt"] and not has["ca.key"]:
                raise BadInput(
                    f"--tls: {folder} has an authority, ca.crt, and no {name}.crt: put the certificate and {name}.key "
                    "there, or ca.key to have them made"
                )
            with checking("--name"):
                node = NodeName(check_name(given["cluster_name"]), check_name(name))
            dev_certificates.make_certificates(folder, [node], _certificate_hosts(given))
            if not has["ca.key"]:
                made.append(
                    f"made: authority {folder / 'ca.crt'}; its key, ca.key, does not belong on a node's machine"
                )
            made.append(f"made: certificate {folder / name}.crt, with its key")
    if given["tokens"] is not None:
        missing = [role.value for role in TokenRole if not (given["tokens"] / f"{role.value}.token").exists()]
        dev_certificates.make_tokens(given["tokens"])
        if missing:
            made.append(f"made: tokens of the roles {', '.join(missing)} in {given['tokens']}")
    return made


def _certificate_hosts(given: dict[str, Any]) -> Sequence[str]:
    """Names and addresses that the certificate is for: where others reach the node, and this machine."""
    own = given["advertise"] or given["host"]
    from isthmus.node.local.dev_certificates import LOCAL_HOSTS

    anywhere = ("0.0.0.0", "::")  # noqa: S104 - compared with, not bound to
    return list(dict.fromkeys([*([] if own in anywhere else [own]), *LOCAL_HOSTS]))


OPTION_OF: Final = {
    r"node\.name": "--name",
    r"node\.cluster": "--cluster-name",
    r"node\.data_dir": "--data-dir",
    r"node\.rack": "--rack",
    r"listen\.advertise": "--advertise",
    r"listen": "--host",
    r"metastore\.hosts": "--metastore",
    r"replication\.factor": "--replication-factor",
    r"tls\.peer_authority": "--peer-ca",
    r"tls\.metastore": "--metastore-tls",
    r"tls": "--tls",
    r"tokens": "--tokens",
    r"queues": "--queue",
    r"(sink\.peers|fullsync)\[\d+\]\.cluster": "--peer-cluster",
    r"(sink\.peers|fullsync)\[\d+\]\.token_file": "--peer-token-file",
    r"fullsync\[\d+\]\.name": "--peer-cluster",
    r"fullsync\[\d+\]\.queue": "--queue",
    r"fullsync\[\d+\]\.urls": "--peer",
    r"sink\.peers": "--peer",
}
"""Key of the file, or beginning of keys, as a pattern -> the option of `node init` that gives its value."""


def _at_option(fault: Fault) -> Fault:
    """The fault with its option instead of a line of a file that is not written."""
    for key, option in OPTION_OF.items():
        if re.match(rf"{key}(?![a-z_])", fault.path):
            return Fault(option, 0, fault.message)
    return fault._replace(line=0)


def _echo(file: Path, settings: Settings, made: Sequence[str], output: str) -> None:
    node = settings.node
    warnings = [{"key": path, "message": message} for path, message in warnings_of(settings)]
    if output == "json":
        answer = {"file": str(file), "node": node.name, "cluster": node.cluster, "id": node.id}
        echo_json({**answer, "data_dir": str(node.data_dir), "made": list(made), "warnings": warnings})
        return
    for sentence in made:
        click.echo(printable(sentence))
    for each in warnings:
        click.echo(printable(f"warning: {each['key']}: {each['message']}"), err=True)
    click.echo(printable(f"{file}: node {node.name} of cluster {node.cluster}; `isthmus node run {file}` starts it"))
