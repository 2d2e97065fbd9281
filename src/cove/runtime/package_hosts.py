"""The preset `packages`: the hosts that pip, npm and apt of this machine are configured with. Blocks.

Nothing is written down here: what the tools would use is asked of them and of their configuration, then looked at over
the network for the hosts that downloads lead to. That takes seconds, so it is kept for a day.
"""

import configparser
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urljoin, urlsplit
from urllib.request import Request, urlopen

import msgspec

from cove.core.network_policy import Address, judge_address
from cove.errors import ValidationFailed
from cove.local.state import replace_file
from cove.model import NetworkPolicy, NetworkRule
from cove.model.network import WEB_PORTS, check_network

Place = tuple[Address, str]

PRESET = "packages"
_KEPT_SECONDS = 86_400.0
_ASK_SECONDS = 10.0
_LOOK_SECONDS = 5.0
_PAGE_BYTES = 1 << 18
_MOST_HOSTS = 32
_LINK = re.compile(rb'href="([^"#]+)')
_APT_URI = re.compile(r"^(?:deb(?:-src)?\s+(?:\[[^\]]*\]\s+)?|URIs:\s*)(.*)$", re.MULTILINE)
_URL = re.compile(r"https?://[^\s\"']+")
# Any package will do: its page on an index shows where that index keeps its files.
_PIP_PROGRAM = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"
_PIP_SECTIONS = ("global", "install", "download")


def expand_presets(policy: NetworkPolicy, rules: Iterable[NetworkRule]) -> NetworkPolicy:
    """Replace the preset in a policy by its rules, if it is there."""
    others = [each for each in policy.allow if each not in (PRESET, NetworkRule(PRESET))]
    found = rules if len(others) < len(policy.allow) else ()
    return msgspec.structs.replace(policy, allow=[*others, *found])


def package_rules(home: Path, *, refresh: bool = False) -> list[NetworkRule]:
    """Return a rule for each host; one that the configuration names may be reached at a private address."""
    kept = home / "packages.json"
    with suppress(OSError, ValueError):
        if not refresh and time.time() - kept.stat().st_mtime < _KEPT_SECONDS:
            return msgspec.json.decode(kept.read_bytes(), type=list[NetworkRule])
    rules = _make_rules({*_pip_urls(), *_npm_urls(), *_apt_urls()})
    with suppress(OSError):
        replace_file(kept, msgspec.json.encode(rules))
    return rules


def _make_rules(urls: Iterable[str]) -> list[NetworkRule]:
    """Only what the configuration names may be private, by whatever name: a page may link to anything."""
    urls = sorted(urls)
    named = sorted({host for url in urls for host in _hosts_of(url)})[:_MOST_HOSTS]
    linked = sorted({host for url in urls for host in _led_to(url)}.difference(named))[: _MOST_HOSTS - len(named)]
    places = {host: _places_of(host) for host in (*named, *linked)}
    known = set[Place]().union(*(places[host] for host in named))
    rules = [NetworkRule(host, private=_are_private(places[host])) for host in (*named, *linked)]
    return [rule for rule in rules if not rule.private or places[rule.host] <= known]


def _hosts_of(url: str, base: str = "") -> Iterator[str]:
    """The host of an address of the web, as a rule names it; nothing where no rule could."""
    with suppress(ValueError, ValidationFailed):
        parts = urlsplit(urljoin(base, url))
        if parts.hostname and parts.scheme in ("http", "https"):
            host = parts.hostname if parts.port in (None, *WEB_PORTS) else f"{parts.hostname}:{parts.port}"
            check_network(NetworkPolicy(allow=[host]))
            yield host


def _led_to(url: str) -> Iterator[str]:
    """Hosts that this address redirects to, and that the links on its page lead to."""
    try:
        request = Request(url, headers={"User-Agent": "cove", "Accept": "text/html, */*"})  # noqa: S310  # http or https
        with urlopen(request, timeout=_LOOK_SECONDS) as answer:  # noqa: S310
            yield from _hosts_of(answer.url)
            page = answer.read(_PAGE_BYTES) if "html" in answer.headers.get("Content-Type", "") else b""
            for link in set(_LINK.findall(page)):
                yield from _hosts_of(link.decode("utf-8", "replace"), answer.url)
    except HTTPError as error:
        error.close()
    except (OSError, ValueError):
        return


def _places_of(host: str) -> set[Place]:
    """The addresses of a host, each with the port that a rule for it has."""
    name, _, port = host.partition(":")
    with suppress(OSError, ValueError):
        return {(ip_address(str(each[4][0]).partition("%")[0]), port) for each in socket.getaddrinfo(name, None)}
    return set()


def _are_private(places: set[Place]) -> bool:
    return bool(places) and all(judge_address(address, private=False) is not None for address, _ in places)


def _pip_urls() -> Iterator[str]:
    """Indexes of pip, by its variables and files; its own if they name none. A page of each shows where files are."""
    indexes, others = set[str](), set[str]()
    for name, value in _pip_settings():
        (indexes if name == "index-url" else others).update(_URL.findall(value))
    for url in {*(indexes or _pip_default()), *others}:
        yield url
        yield urljoin(f"{url.rstrip('/')}/", "pip/")


def _pip_settings() -> Iterator[tuple[str, str]]:
    names = ("index-url", "extra-index-url", "find-links")
    for name in names:
        yield name, os.environ.get(f"PIP_{name.replace('-', '_').upper()}", "")
    home = Path(os.path.expanduser("~"))
    files = [Path("/etc/pip.conf"), home / ".pip/pip.conf", home / ".config/pip/pip.conf", Path(sys.prefix, "pip.conf")]
    parser = configparser.RawConfigParser(strict=False)
    with suppress(configparser.Error, UnicodeDecodeError):
        parser.read([*files, *filter(None, [os.environ.get("PIP_CONFIG_FILE")])])
    for section in _PIP_SECTIONS:
        for name in names:
            yield name, parser.get(section, name, fallback="")


def _pip_default() -> list[str]:
    for python in (sys.executable, "/usr/bin/python3"):
        if found := _URL.findall(_ask(python, "-c", _PIP_PROGRAM)):
            return found
    return []


def _npm_urls() -> Iterator[str]:
    answer = _ask("npm", "config", "list", "--json")
    with suppress(ValueError):
        settings = json.loads(answer)
        for name, value in settings.items() if isinstance(settings, dict) else ():
            if (name == "registry" or name.endswith(":registry")) and isinstance(value, str):
                yield from _URL.findall(value)


def _apt_urls() -> Iterator[str]:
    apt = Path("/etc/apt")
    for path in (apt / "sources.list", *apt.glob("sources.list.d/*.list"), *apt.glob("sources.list.d/*.sources")):
        with suppress(OSError, UnicodeDecodeError):
            for line in _APT_URI.findall(path.read_text()):
                yield from _URL.findall(line)


def _ask(*command: str) -> str:
    with suppress(OSError, subprocess.SubprocessError):
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=_ASK_SECONDS, cwd="/", stdin=subprocess.DEVNULL, check=True
        )
        return ended.stdout
    return ""
