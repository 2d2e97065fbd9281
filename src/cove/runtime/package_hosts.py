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

from cove.core.network_policy import judge_address
from cove.errors import ValidationFailed
from cove.local.state import replace_file
from cove.model import NetworkPolicy, NetworkRule
from cove.model.network import check_network

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
    """Replace the preset in a policy by its rules."""
    others = [each for each in policy.allow if each != PRESET]
    return msgspec.structs.replace(policy, allow=[*others, *rules])


def package_rules(home: Path, *, refresh: bool = False) -> list[NetworkRule]:
    """Return a rule for each host; one with a private address may be reached there."""
    kept = home / "packages.json"
    with suppress(OSError, ValueError):
        if not refresh and time.time() - kept.stat().st_mtime < _KEPT_SECONDS:
            return msgspec.json.decode(kept.read_bytes(), type=list[NetworkRule])
    rules = _make_rules({*_pip_urls(), *_npm_urls(), *_apt_urls()})
    with suppress(OSError):
        replace_file(kept, msgspec.json.encode(rules))
    return rules


def _make_rules(urls: Iterable[str]) -> list[NetworkRule]:
    hosts = {host for url in urls for host in (_host_and_port(url), *_led_to(url)) if host is not None}
    rules = [
        NetworkRule(name if port in (80, 443) else f"{name}:{port}", private=_is_private(name))
        for name, port in sorted(dict(sorted(hosts)).items())[:_MOST_HOSTS]
    ]
    return [rule for rule in rules if _makes_sense(rule)]


def _makes_sense(rule: NetworkRule) -> bool:
    """A page may link to whatever it likes."""
    try:
        check_network(NetworkPolicy(allow=[rule]))
    except ValidationFailed:
        return False
    return True


def _host_and_port(url: str) -> tuple[str, int] | None:
    parts = urlsplit(url)
    with suppress(ValueError):
        if parts.hostname and parts.scheme in ("http", "https"):
            return parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
    return None


def _led_to(url: str) -> Iterator[tuple[str, int] | None]:
    """Hosts that this address redirects to, and that the links on its page lead to."""
    request = Request(url, headers={"User-Agent": "cove", "Accept": "text/html, */*"})  # noqa: S310  # http or https
    try:
        with urlopen(request, timeout=_LOOK_SECONDS) as answer:  # noqa: S310
            yield _host_and_port(answer.url)
            page = answer.read(_PAGE_BYTES) if "html" in answer.headers.get("Content-Type", "") else b""
            for link in set(_LINK.findall(page)):
                yield _host_and_port(urljoin(answer.url, link.decode("utf-8", "replace")))
    except HTTPError as error:
        error.close()
    except (OSError, ValueError):
        return


def _is_private(name: str) -> bool:
    with suppress(OSError, ValueError):
        found = {ip_address(str(each[4][0]).partition("%")[0]) for each in socket.getaddrinfo(name, None)}
        return bool(found) and all(judge_address(each, private=False) is not None for each in found)
    return False


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
