"""Drives E2B's Python clients, unchanged, with `E2B_DOMAIN` alone: TLS, and a host name for each sandbox and port.

A wildcard name stands in a name server; here the names of a sandbox are written to /etc/hosts once it has an id. The
clients read that file once, so that another process goes on.
"""

import asyncio
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

from e2b_code_interpreter import AsyncSandbox, Sandbox

DOMAIN = os.environ["E2B_DOMAIN"]


def create():
    with Sandbox.create() as sandbox:
        with Path("/etc/hosts").open("a") as hosts:
            name = f"{sandbox.sandbox_id}.{DOMAIN.partition(':')[0]}"
            hosts.writelines(f"127.0.0.1 {port}-{name}\n" for port in (8000, 49983, 49999))
        subprocess.run([sys.executable, __file__, sandbox.sandbox_id], check=True, timeout=100)


def get(url):
    with urllib.request.urlopen(url, timeout=20) as reply:
        return reply.read()


def use(id):
    sandbox = Sandbox.connect(id)
    assert sandbox.is_running()
    assert sandbox.commands.run("echo hello").stdout == "hello\n"
    sandbox.files.write("notes", "text")
    assert sandbox.files.read("notes") == "text"
    assert sandbox.download_url("notes").startswith(f"https://49983-{id}.{DOMAIN}/files?")
    assert get(sandbox.download_url("notes", use_signature_expiration=60)) == b"text"
    assert sandbox.run_code("1 + 1").text == "2"
    sandbox.commands.run("echo page > /tmp/page; exec python3 -m http.server 8000 -d /tmp", background=True)
    sandbox.commands.run("until (exec 3<>/dev/tcp/127.0.0.1/8000) 2> /dev/null; do sleep 0.05; done")
    assert sandbox.get_host(8000) == f"8000-{id}.{DOMAIN}"
    assert get(f"https://{sandbox.get_host(8000)}/page") == b"page\n"


async def use_asynchronously(id):
    sandbox = await AsyncSandbox.connect(id)
    assert (await sandbox.commands.run("echo hello")).stdout == "hello\n"
    assert (await sandbox.run_code("echo $((1 + 1))", language="bash")).logs.stdout == ["2\n"]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        use(sys.argv[1])
        asyncio.run(use_asynchronously(sys.argv[1]))
        os._exit(0)  # the client's native threads abort some interpreters that end beside them
    else:
        create()
        print("all is well")
