"""`cove port` against a real server: what listens inside is reached by the URL that is printed."""

import urllib.error
import urllib.request

import pytest
from support.commands import Cli, cli_of_module, sandbox_of_test

pytestmark = pytest.mark.pure
cove = cli_of_module
sandbox = sandbox_of_test


def test_a_port_is_exposed_listed_reached_and_closed_again(cove: Cli, sandbox: str) -> None:
    cove.text("exec", "--in", sandbox, "echo hello > index.html")
    cove.text("start", sandbox, "python3 -u -m http.server 3000")
    cove.text("exec", "--in", sandbox, "until echo > /dev/tcp/127.0.0.1/3000; do :; done 2> /dev/null")
    url = cove.text("port", "expose", "--name", "web", sandbox, "3000").strip()
    (listed,) = cove.json("port", "ls", sandbox)
    assert (listed["port"], listed["name"], listed["url"]) == (3000, "web", url)
    assert url in cove.text("port", "ls", sandbox)
    assert urllib.request.urlopen(listed["path_url"], timeout=30).read() == b"hello\n"
    cove.text("port", "rm", sandbox, "3000")
    with pytest.raises(urllib.error.HTTPError) as failure:
        urllib.request.urlopen(listed["path_url"], timeout=30)
    failure.value.close()
    assert failure.value.code == 404
    assert cove.json("port", "ls", sandbox) == []


def test_what_cannot_be_exposed_is_told(cove: Cli, sandbox: str) -> None:
    cove.text("port", "expose", "--token", "mine", sandbox, "3000")
    assert f"`cove port ls {sandbox}` shows its URL" in cove("port", "expose", sandbox, "3000").stderr.decode()
    for arguments in ((sandbox, "3000"), (sandbox, "99999"), (sandbox, "-1"), ("--token", "UPPER", sandbox, "80")):
        end = cove("port", "expose", *arguments)
        assert (end.returncode, end.stdout) == (125, b"")
        assert b"Traceback" not in end.stderr
