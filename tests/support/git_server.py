"""A real git server on loopback: git's own http-backend behind a small HTTP server with a password."""

import base64
import os
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

USER, PASSWORD = "somebody", "s3cret/t0ken+%"


def run_git(*words: str, cwd: Path) -> str:
    env = {"PATH": os.environ["PATH"], "HOME": str(cwd), "GIT_CONFIG_NOSYSTEM": "1"}
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.com", "-c", "init.defaultBranch=main"]
    return subprocess.run(
        ["git", *identity, *words], cwd=cwd, env=env, check=True, capture_output=True, text=True
    ).stdout


def make_repository(top: Path) -> str:
    """A bare repository at top/project.git with two branches; returns the commit of main."""
    work = top / "work"
    work.mkdir()
    run_git("init", "--quiet", cwd=work)
    for number in range(3):
        (work / "file").write_text(f"{number}\n")
        run_git("add", ".", cwd=work)
        run_git("commit", "--quiet", "-m", f"change {number}", cwd=work)
    run_git("branch", "other", "HEAD~1", cwd=work)
    run_git("clone", "--quiet", "--bare", str(work), str(top / "project.git"), cwd=top)
    return run_git("rev-parse", "HEAD", cwd=work).strip()


class Handler(BaseHTTPRequestHandler):
    top: Path
    password: str | None
    asked: list[str]

    def do_GET(self) -> None:
        self.respond()

    def do_POST(self) -> None:
        self.respond()

    def respond(self) -> None:
        self.asked.append(self.headers.get("Authorization", ""))
        expected = "Basic " + base64.b64encode(f"{USER}:{self.password}".encode()).decode()
        given = self.headers.get("Authorization", "")
        matches = given == expected or (given and base64.b64decode(given[6:]).decode().endswith(f":{self.password}"))
        if self.password is not None and not matches:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="git"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.run_backend()

    def run_backend(self) -> None:
        path, _, query = self.path.partition("?")
        env = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(self.top),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
        }
        body = self.read_body()
        answer = subprocess.run(["git", "http-backend"], input=body, env=env, capture_output=True).stdout
        head, _, content = answer.partition(b"\r\n\r\n")
        fields = [line.split(": ", 1) for line in head.decode().split("\r\n")]
        status = [int(value.split()[0]) for name, value in fields if name == "Status"] or [200]
        self.send_response(status[0])
        for name, value in fields:
            if name != "Status":
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@contextmanager
def git_server(
    top: Path, password: str | None = None, context: ssl.SSLContext | None = None
) -> Iterator[tuple[str, list[str]]]:
    """Its address, and the credentials that it was given; with a context it speaks TLS."""
    asked: list[str] = []
    handler = type("OneHandler", (Handler,), {"top": top, "password": password, "asked": asked})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"{'http' if context is None else 'https'}://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
