"""Serve the console's files: one page, its assets by names that say their content, and the frame of code results.

The policies are the border between the console and what it shows. The page runs no script but its own, and frames
nothing but previews and the frame for HTML that code gave. That one has an opaque origin, whoever opens it: it has no
cookie, no API, no connection to anywhere, and its parent is only told what it posts.
"""

import gzip
import mimetypes
import re
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from cove.errors import NotFound
from cove.http import Headers, Request, Response
from cove.local.threads import in_thread
from cove.server.preview.exposures import PreviewAddress

ASSETS: Final = "/console/assets/"
FRAME: Final = "/console/frame"
_STATIC: Final = files("cove.server.console") / "static"
_FRAME_FILE: Final = files("cove.server.console") / "frame.html"
_ASSET_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
_HTML: Final = (b"content-type", b"text/html; charset=utf-8")
_COMMON: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-dns-prefetch-control", b"off"),
)
# What is compressed already gains nothing.
_COMPRESSED: Final = (".png", ".woff2", ".gz", ".br")
_FRAME_POLICY: Final = (
    b"sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; "
    b"img-src data: blob:; media-src data: blob:; font-src data:; connect-src 'none'; frame-src 'none'; "
    b"form-action 'none'; base-uri 'none'; frame-ancestors 'self'; webrtc 'block'"
)
_NOT_BUILT: Final = (
    b'<!doctype html><html lang="en"><meta charset="utf-8"><title>Cove</title><h1>The console is not built</h1>'
    b"<p>This server runs from a checkout without the console's files. Build them with <code>make console</code>, "
    b"which needs Node.js 20 and npm, and load this page again. The API is served: see <code>/v1/openapi</code>."
)


class Pages:
    """All files of the console. Assets are kept, compressed, from when they were first asked for."""

    def __init__(self, address: PreviewAddress, static: Traversable = _STATIC) -> None:
        self._static = static
        self._policy = page_policy(preview_origins(address))
        self._assets: dict[str, tuple[Headers, bytes, bytes]] = {}

    async def index(self) -> Response:
        """Return the page, or how to build it."""
        page = await in_thread(self._read, "index.html")
        headers = (_HTML, (b"cache-control", b"no-cache"), (b"content-security-policy", self._policy), *_COMMON)
        return Response(503, headers, _NOT_BUILT) if page is None else Response(200, headers, page)

    async def frame(self) -> Response:
        """Return the page that shows HTML which is posted to it."""
        policy = (b"content-security-policy", _FRAME_POLICY)
        return Response(200, (_HTML, policy, *_COMMON), await in_thread(_FRAME_FILE.read_bytes))

    async def asset(self, request: Request) -> Response:
        """Return an asset. Its name has a digest of its content, so that browsers need not ask again."""
        name = request.path.removeprefix(ASSETS)
        if name not in self._assets and (found := await in_thread(self._load, name)) is not None:
            self._assets[name] = found
        if name not in self._assets:
            raise NotFound(f"there is nothing at {request.path}")
        headers, plain, compressed = self._assets[name]
        if compressed and b"gzip" in request.headers.get(b"accept-encoding", b""):
            return Response(200, (*headers, (b"content-encoding", b"gzip")), compressed)
        return Response(200, headers, plain)

    def _load(self, name: str) -> tuple[Headers, bytes, bytes] | None:
        if _ASSET_NAME.fullmatch(name) is None or (plain := self._read("assets", name)) is None:
            return None
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        headers = (
            (b"content-type", f"{kind}; charset=utf-8".encode() if kind.startswith("text/") else kind.encode()),
            (b"cache-control", b"public, max-age=31536000, immutable"),
            (b"vary", b"accept-encoding"),
            *_COMMON,
        )
        return headers, plain, b"" if name.endswith(_COMPRESSED) else gzip.compress(plain, 6, mtime=0)

    def _read(self, *names: str) -> bytes | None:
        try:
            return self._static.joinpath(*names).read_bytes()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None


def preview_origins(address: PreviewAddress) -> tuple[str, ...]:
    """Return the origins of previews, as a policy names them: by host name, and by path."""
    return tuple(dict.fromkeys((address.url("*"), address.path_base)))


def page_policy(frames: tuple[str, ...]) -> bytes:
    """Return the policy of the page; styles may be inline, as terminal and editor make some."""
    return (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
        "font-src 'self' data:; connect-src 'self'; worker-src 'self' blob:; manifest-src 'self'; "
        f"frame-src 'self' {' '.join(frames)}; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ).encode()
