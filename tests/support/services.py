"""Programs that listen inside a sandbox, and what tests do with connections to them."""

import asyncio
import hashlib

from cove import AsyncSandbox
from cove.api import Process, TcpConnection

# Sends back what it gets, on as many connections as there are.
ECHO = """
import socket, sys, threading
def serve(connection):
    with connection:
        while data := connection.recv(1 << 18):
            connection.sendall(data)
server = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=64)
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""

# Says how much it got, when it got everything.
COUNT = """
import socket, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    connection, count = server.accept()[0], 0
    while data := connection.recv(65536):
        count += len(data)
    connection.sendall(b"%d" % count)
    connection.close()
"""

# What web services do, each at a path of its own.
HTTP = r"""
import base64, hashlib, json, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def answer(self, body, status=200, **headers):
        self.send_response(status)
        for name, value in headers.items():
            for each in value if isinstance(value, list) else [value]:
                self.send_header(name.replace("_", "-"), each)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.flush()

    def do_GET(self):
        path, _, query = self.path.partition("?")
        if path == "/headers":
            self.answer(json.dumps({"path": self.path, "headers": self.headers.items()}).encode())
        elif path == "/redirect":
            self.answer(b"", 302, Location=query or "/headers")
        elif path == "/cookies":
            self.answer(b"two", Set_Cookie=["a=1; Path=/; HttpOnly", "b=2; Domain=localhost; Path=/x"])
        elif path.startswith("/file/"):
            self.answer(Path(path[6:]).read_bytes())
        elif path == "/stream":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for number in range(int(query)):
                self.chunk(b"%d\n" % number)
                Path("go%d" % number).exists() or self.wait(number)
            self.wfile.write(b"0\r\n\r\n")
        elif path == "/endless":
            self.send_response(200)
            self.send_header("Connection", "close")
            self.end_headers()
            while True:
                self.wfile.write(b"x" * 65536)
        elif path == "/hop":
            self.answer(b"hop", Connection="X-Private", X_Private="1", Keep_Alive="timeout=5", X_Public="2")
        elif path == "/websocket":
            self.websocket()
        else:
            self.answer(b"you asked for " + path.encode())

    do_HEAD = do_GET

    def wait(self, number):
        while not Path("go%d" % number).exists():
            time.sleep(0.005)

    def do_POST(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            while size := int(self.rfile.readline(), 16):
                self.chunk(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            self.wfile.write(b"0\r\n\r\n")
        else:
            self.answer(hashlib.sha256(self.rfile.read(int(self.headers["Content-Length"]))).hexdigest().encode())

    def websocket(self):
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.end_headers()
        self.wfile.flush()
        self.close_connection = True
        while head := self.rfile.read(2):
            size = head[1] & 127
            if size > 125:
                extended = self.rfile.read(2 if size == 126 else 8)
                size = int.from_bytes(extended, "big")
            else:
                extended = b""
            mask, data = self.rfile.read(4), self.rfile.read(size)
            mask = (mask * (size // 4 + 1))[:size]
            plain = (int.from_bytes(data, "big") ^ int.from_bytes(mask, "big")).to_bytes(size, "big")
            self.wfile.write(bytes([head[0], head[1] & 127]) + extended + plain)
            self.wfile.flush()
            if head[0] & 15 == 8:
                return

class Server(ThreadingHTTPServer):
    request_queue_size = 64
    daemon_threads = True

Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""

# Sends the bytes given, as they are, to whoever connects, and waits until that one is gone.
RAW = """
import socket, sys, threading
def serve(connection):
    with connection:
        connection.recv(65536)
        connection.sendall(sys.argv[2].encode("latin-1").decode("unicode_escape").encode("latin-1"))
        if sys.argv[3] == "stay":
            while connection.recv(65536):
                pass
server = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=64)
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""

# Sends one thing and then another for ever.
FLOOD = """
import socket, sys, threading
first, then = (word.encode("latin-1").decode("unicode_escape").encode("latin-1") for word in sys.argv[2:])
def serve(connection):
    with connection:
        connection.recv(65536)
        connection.sendall(first)
        while True:
            connection.sendall(then * 4096)
server = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=64)
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""


async def start(sandbox: AsyncSandbox, script: str, port: int, *arguments: str) -> Process:
    """The program on that port, listening."""
    process = await sandbox.start_process(["python3", "-c", script, str(port), *arguments])
    await process.wait_for_port(port, mode="tcp", timeout=30)
    return process


async def echo(connection: TcpConnection, megabytes: int = 50) -> int:
    """Send so much and read it back at the same time; how much came back, all of it as it was sent."""
    block = bytes(range(256)) * 4096
    sent, received, count = hashlib.sha256(), hashlib.sha256(), 0

    async def send() -> None:
        for _ in range(megabytes):
            sent.update(block)
            await connection.write(block)
        await connection.write_eof()

    sending = asyncio.create_task(send())
    while data := await connection.read():
        received.update(data)
        count += len(data)
    await sending
    assert received.digest() == sent.digest()
    return count
