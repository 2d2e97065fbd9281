"""Exports in S3-compatible storage, by `obstore`. Blocks.

Credentials, region and endpoint come from the environment, as AWS names them: AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, ….
"""

import os
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from cove.core.snapshot_index import MOST_INDEX_BYTES
from cove.errors import FileNotFound, PermissionDenied, ServiceNotResponding, ValidationFailed
from cove.local.extras import install_command

if TYPE_CHECKING:
    from obstore.store import S3Store

SCHEME: Final = "s3://"
_CHUNK_BYTES: Final = 8 << 20


class _Checked(FileIO):
    """A file whose reader can be told to stop."""

    def __init__(self, path: Path, check: Callable[[], object]) -> None:
        super().__init__(path)
        self._check = check
        self.failure: BaseException | None = None

    def read(self, size: int | None = -1, /) -> bytes:
        try:
            self._check()
        except BaseException as error:
            self.failure = error  # the client makes an error of its own of it
            raise
        return super().read(size)


class Bucket:
    """A prefix of a bucket, as a place and as an origin. The prefix of an index leads to what is beside it."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "s3" or not parts.netloc or parts.query or parts.fragment or "@" in parts.netloc:
            raise ValidationFailed(f"{url} is no address of a bucket: write s3://BUCKET/PREFIX")
        path = parts.path.strip("/")
        self._index: str | None = None
        if path.endswith(".json"):
            top, _, self._index = path.rpartition("snapshots/")
            self._index = f"snapshots/{self._index}"
            path = top.strip("/")
        self._url = f"{SCHEME}{parts.netloc}/{path}".rstrip("/")
        self._store = _open(parts.netloc, path)

    def has(self, name: str) -> bool:
        """Return whether that layer is there."""
        import obstore

        with _translated(self._url):
            try:
                obstore.head(self._store, name)
            except FileNotFoundError:
                return False
            return True

    def put(self, name: str, file: Path, check: Callable[[], object]) -> None:
        """Send it, in several parts if it is large: it is there when all have come."""
        import obstore

        with _translated(self._url), _Checked(file, check) as source:
            try:
                obstore.put(self._store, name, source, chunk_size=_CHUNK_BYTES)
            except OSError:
                raise source.failure or ServiceNotResponding(f"{self._url}: it cannot be written") from None

    def finish(self, name: str, index: bytes, check: Callable[[], object]) -> str:
        """Write the index."""
        import obstore

        with _translated(self._url):
            obstore.put(self._store, name, index)
        return f"{self._url}/{name}"

    def index(self) -> bytes:
        """Return the index: the one that was named, or the only one."""
        data = b""
        for piece in self.pieces(self._index or self._only_index()):
            data += piece
            if len(data) > MOST_INDEX_BYTES:
                raise ValidationFailed("the index of the export is too large")
        return data

    def pieces(self, name: str) -> Iterator[bytes]:
        """Yield a layer."""
        import obstore

        with _translated(f"{self._url}/{name}"):
            for piece in obstore.get(self._store, name).stream(min_chunk_size=1 << 20):
                yield bytes(piece)

    def _only_index(self) -> str:
        import obstore

        with _translated(self._url):
            found = [
                each["path"]
                for batch in obstore.list(self._store, prefix="snapshots", chunk_size=100)
                for each in batch
                if each["path"].endswith(".json")
            ]
        if not found:
            raise FileNotFound(f"{self._url} has no export of a snapshot")
        if len(found) > 1:
            raise ValidationFailed(
                f"{self._url} has {len(found)} exports, name one of them: {self._url}/{min(found)}, …"
            )
        return found[0]


def _open(bucket: str, prefix: str) -> "S3Store":
    try:
        from obstore.store import S3Store
    except ImportError:
        message = f"exports to s3:// need one package more: `{install_command('s3')}`"
        raise ValidationFailed(message) from None
    endpoint = os.environ.get("AWS_ENDPOINT_URL", "")
    return S3Store(
        bucket,
        prefix=prefix or None,
        client_options={"allow_http": endpoint.startswith("http://")},
        retry_config={"max_retries": 3},
    )


class _translated:  # noqa: N801  # used as a function
    """Make our errors of those of the client, which name nothing secret."""

    def __init__(self, subject: str) -> None:
        self._subject = subject

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

        if isinstance(error, FileNotFoundError):
            raise FileNotFound(f"{self._subject} is not there") from None
        if isinstance(error, PermissionDeniedError | UnauthenticatedError):
            raise PermissionDenied(f"{self._subject}: the storage refuses these credentials") from None
        if isinstance(error, BaseError):
            raise ServiceNotResponding(f"{self._subject}: {str(error)[:500]}") from None
