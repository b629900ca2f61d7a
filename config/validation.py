"""Texts of settings: names, addresses, URLs, lists and filters, each checked and brought into its normal form.

Pure functions over single values; `config.forms` has the forms of all values, `config.relations` the rules between
settings. The meaning of a queue's filter is `queues.filters`; its form is checked here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from isthmus.config.text import shown

PORT_MAX: Final = 65_535

ALL_TYPES: Final = "*"
"""`bucket_types` for all of them."""


@dataclass(frozen=True, slots=True)
class Address:
    """host:port; port 0 means any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


NAME_RULE: Final = "1 to 64 letters, digits, - _ . and begins with a letter or digit"
"""Names become parts of metastore paths, file names and URLs, so "..", "/" and spaces must not occur."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,252})", re.ASCII)
_IPV6 = re.compile(r"[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(%[A-Za-z0-9._-]+)?", re.ASCII)
_ROOT = re.compile(r"(/[A-Za-z0-9][A-Za-z0-9._-]*)+", re.ASCII)


def check_name(value: str) -> str:
    """The name; ValueError when it is not one."""
    if _NAME.fullmatch(value) is None:
        raise ValueError(f"{shown(value)} is not a name; a name is {NAME_RULE}")
    return value


def check_name_or_none(value: str) -> str:
    """A name, or "" for none; ValueError otherwise."""
    return check_name(value) if value else value


_USER = re.compile(r"[!-9;-~]{0,64}", re.ASCII)


def check_user(value: str) -> str:
    """A user's name for basic authentication, or "" for none; ValueError otherwise. A colon would end it."""
    if _USER.fullmatch(value) is None:
        raise ValueError(f"{shown(value)} is not a user's name; it has up to 64 printable characters without a colon")
    return value


def check_host(value: str) -> str:
    """A host name or an address without a port, or "" for none; ValueError otherwise."""
    if value and _HOST.fullmatch(value) is None and _IPV6.fullmatch(value) is None:
        raise ValueError(f'{shown(value)} is not a host; write a name or an address without a port, such as "10.0.0.7"')
    return value


def parse_address(value: str) -> Address:
    """The address in HOST:PORT, an IPv6 host in brackets; ValueError with the reason."""
    host, colon, port_text = value.rpartition(":")
    form = 'write HOST:PORT, such as "127.0.0.1:8098" or "[::1]:8098"'
    if "://" in value:
        raise ValueError(f"{shown(_without_secrets(value))} is a URL; {form}, without a scheme and without a path")
    if not colon or not host or not port_text:
        raise ValueError(f"{shown(value)} is not an address; {form}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if _IPV6.fullmatch(host) is None:
            raise ValueError(f"{shown(value)}: what is in brackets is not an IPv6 address; {form}")
    elif ":" in host:
        raise ValueError(f"{shown(value)}: an IPv6 address is in brackets; {form}")
    elif _HOST.fullmatch(host) is None:
        raise ValueError(f"{shown(value)}: {shown(host)} is not a host name; {form}")
    if not (port_text.isascii() and port_text.isdigit() and int(port_text[:9]) <= PORT_MAX and len(port_text) <= 5):
        raise ValueError(f"{shown(value)}: the port is a number from 0 to {PORT_MAX}; {form}")
    return Address(host, int(port_text))


def check_hosts(value: str) -> str:
    """ "zk1:2181,zk2:2181" without spaces, or "" for the embedded metastore; ValueError names the wrong part."""
    if not value.strip():
        return ""
    hosts = []
    for part in value.split(","):
        if "/" in part and "://" not in part:
            raise ValueError(f"{shown(part)}: a path does not belong here; set metastore.root instead")
        address = parse_address(part.strip())
        if address.port == 0:
            raise ValueError(f"{shown(part)}: port 0 cannot be dialled; ZooKeeper listens on 2181 by default")
        if str(address) in hosts:
            raise ValueError(f"{shown(str(address))} is there twice; name each ZooKeeper once")
        hosts.append(str(address))
    return ",".join(hosts)


def check_root(value: str) -> str:
    """An absolute metastore path without an end slash."""
    if _ROOT.fullmatch(value) is None:
        raise ValueError(f'{shown(value)} is not a metastore path; write one such as "/isthmus", without an end slash')
    return value


def check_collector_url(value: str) -> str:
    """http(s)://HOST[:PORT]/PATH, or "" for none; ValueError otherwise."""
    form = 'write the collector\'s URL with its path, such as "http://127.0.0.1:4318/v1/traces"'
    if not value:
        return ""
    scheme, separator, rest = value.partition("://")
    authority, slash, path = rest.partition("/")
    host, _, port = authority.rpartition(":") if ":" in authority.rpartition("]")[2] else (authority, "", "443")
    if not separator or scheme not in ("http", "https"):
        raise ValueError(f"{shown(_without_secrets(value))} is not the URL of a collector; {form}")
    if "@" in authority:
        raise ValueError(f"a name and a password do not belong into a URL; {form}, and use traces.headers_file")
    if any(sign in rest for sign in "?#@") or not (slash and path):
        raise ValueError(f"{shown(_without_secrets(value))} is not the URL of a collector; {form}")
    if not parse_address(f"{host}:{port}").port:
        raise ValueError(f"{shown(value)}: port 0 cannot be dialled; {form}")
    return value


def check_peer_url(value: str) -> str:
    """http(s)://HOST:PORT, given back without an end slash."""
    form = 'write http(s)://HOST:PORT, such as "http://10.0.0.7:8098"'
    scheme, separator, rest = value.partition("://")
    if not separator or scheme not in ("http", "https"):
        raise ValueError(f"{shown(_without_secrets(value))} is not the URL of a node; {form}")
    authority = rest.removesuffix("/")
    if any(sign in authority for sign in "/?#@"):
        raise ValueError(f"{shown(_without_secrets(value))}: scheme, host and port only, nothing else; {form}")
    address = parse_address(authority)
    if address.port == 0:
        raise ValueError(f"{shown(value)}: port 0 cannot be dialled; {form}")
    return f"{scheme}://{address}"


def _without_secrets(url: str) -> str:
    """The URL for a message: user and password, query and fragment as "***", since faults end up in logs and
    tickets."""
    scheme, separator, rest = url.rpartition("://")
    _, user, rest = rest.rpartition("@")
    return scheme + separator + ("***@" if user else "") + re.sub(r"([?#]).*", r"\1***", rest)


URLS_MAX: Final = 32
"""Most nodes of another cluster in a list; one that answers is enough."""

TYPES_MAX: Final = 256
"""Most bucket types in one entry."""

_HOURS = re.compile(r"(\d{1,2})-(\d{1,2})", re.ASCII)


def check_urls(value: str) -> str:
    """URL,URL,..., each once; ValueError otherwise."""
    urls = [check_peer_url(url.strip()) for url in value.split(",")]
    if len(set(urls)) != len(urls) or len(urls) > URLS_MAX:
        raise ValueError(f"{shown(value)}: list each of 1 to {URLS_MAX} nodes once")
    return ",".join(urls)


def check_types(value: str) -> str:
    """NAME,NAME,..., each once, or "*" for all; ValueError otherwise."""
    if value.strip() == ALL_TYPES:
        return ALL_TYPES
    names = [check_name(name.strip()) for name in value.split(",")]
    if len(set(names)) != len(names) or len(names) > TYPES_MAX:
        raise ValueError(f"{shown(value)}: list each of 1 to {TYPES_MAX} bucket types once")
    return ",".join(names)


def check_window(value: str) -> str:
    """FIRST-END in hours, "always" or "never"; ValueError otherwise."""
    found = _HOURS.fullmatch(value)
    hours = found is not None and int(found[1]) < 24 and int(found[2]) <= 24
    if not hours and value not in ("always", "never"):
        raise ValueError(f'{shown(value)}: write hours such as "22-6" (from 22:00 until 6:00 UTC), "always" or "never"')
    return value


FILTER_RULES: Final = "any, block_rtq, buckettype:T, bucketname:B, bucketprefix:P, or ! before one of the last three"

_FILTER_RULE = re.compile(r"any|block_rtq|!?\s*(buckettype|bucketname|bucketprefix):\S.*")
_SPACED = re.compile(r"(!?\s*(?:buckettype|bucketname|bucketprefix)):\s+(\S.*)")
_NAMELESS = re.compile(r"!?\s*(buckettype|bucketname|bucketprefix):?")
_BAD_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")


def check_filter(value: str) -> str:
    """The rules of a queue's filter, separated by commas. ValueError names every part that is not a rule, a stray
    percent sign, and rules that exclude each other."""
    parts = [part.strip() for part in value.split(",")]
    wrong = [part for part in parts if _FILTER_RULE.fullmatch(part) is None]
    if wrong:
        if (spaced := next(filter(None, map(_SPACED.fullmatch, wrong)), None)) is not None:
            rule, name = spaced.groups()
            raise ValueError(
                f"{shown(spaced.group())}: there is a space after the colon; write {shown(f'{rule}:{name}')}, or %20 "
                "for a space that the name begins with"
            )
        if (nameless := next(filter(None, map(_NAMELESS.fullmatch, wrong)), None)) is not None:
            raise ValueError(f"{shown(nameless.group())}: no name; write {nameless[1]}:NAME")
        what = "is not a rule of a filter" if len(wrong) == 1 else "are not rules of a filter"
        raise ValueError(f"{', '.join(map(shown, wrong))} {what}; rules are {FILTER_RULES}")
    for part in parts:
        if _BAD_PERCENT.search(part) is not None:
            raise ValueError(f"{shown(part)}: names are percent-encoded in a filter; a percent sign is written as %25")
    if "block_rtq" in parts and len(parts) > 1:
        raise ValueError(f"{shown(value)}: block_rtq stands alone, it offers nothing in real time")
    if "any" in parts and any(part != "any" and not part.startswith("!") for part in parts):
        raise ValueError(f'{shown(value)}: "any" offers everything; beside it only negations (!...) change something')
    return value
