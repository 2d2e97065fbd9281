"""Archives to begin with: made by Python's tarfile, with every kind of member."""

import io
import tarfile
from collections.abc import Iterator


def archive(*members: tuple[str, bytes, str, dict[str, str]], top: str = "") -> bytes:
    """Return an archive of members: name, type, content or target, and records of the extended header."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as file:
        for name, kind, text, records in members:
            member = tarfile.TarInfo(top + name)
            member.type, member.mode, member.pax_headers = kind, 0o755, records
            content = text.encode() if kind == tarfile.REGTYPE else b""
            member.size = len(content)
            member.linkname = text if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE) else ""
            file.addfile(member, io.BytesIO(content))
    return made.getvalue()[: -(-len(made.getvalue()) // 512) * 512].rstrip(b"\0").ljust(1, b"\0") + bytes(1536)


def examples(top: str = "") -> Iterator[bytes]:
    """Give archives of everything that there is in one."""
    file, directory, link, hard = tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE
    yield archive(("a", directory, "", {}), ("a/f", file, "content", {}), ("a/h", hard, f"{top}a/f", {}), top=top)
    yield archive(("l", link, "a/f", {}), ("l/x", file, "through a link", {}), top=top)
    yield archive(("up", link, "../../canary", {}), ("up", file, "over a link", {}), top=top)
    yield archive(("p", tarfile.FIFOTYPE, "", {}), ("d", tarfile.CHRTYPE, "", {}), top=top)
    yield archive(("n" * 150, file, "long", {"SCHILY.xattr.user.a": "b"}), top=top)
    yield archive((".wh.gone", file, "", {}), ("b/.wh..wh..opq", file, "", {}), ("b", directory, "", {}), top=top)
    yield archive(("../../canary", file, "out", {}), ("/abs", file, "abs", {}), top=top)
    sparse = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": f"{top}s",
        "GNU.sparse.realsize": "4096",
    }
    yield archive(("GNUSparseFile.0", file, "2\n0\n4\n4096\n0\n".ljust(512, "\0") + "data", sparse), top=top)
