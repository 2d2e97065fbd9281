"""The tar format: write headers, and parse untrusted ones. pax(1), tar(5)."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Protocol

    class Decode(Protocol):
        """The function that makes a member of its header and its extended header."""

        def __call__(self, block: bytes, kind: bytes, size: int, extended: dict[bytes, bytes], lenient: bool) -> Member:
            """Make a member, checked."""

    class Source(Protocol):
        """The source that an archive is read from."""

        def read(self, size: int) -> bytes:
            """Exactly so many bytes."""


BLOCK = 512
MOST_EXTENDED = 65536
MOST_HEADERS = 8
MOST_PATH = 4095
FILE, HARD_LINK, SYMLINK, DIRECTORY = b"0", b"1", b"2", b"5"
REGULAR = (FILE, b"\0", b"7")
PAX, PAX_GLOBAL, GNU_NAME, GNU_LINK = b"x", b"g", b"L", b"K"
MOST_OCTAL = 8 << 30
MOST_SIZE = 1 << 62
# A file with more pieces of data between holes is sent with its holes.
MOST_RANGES = 10000
SPARSE = {b"GNU.sparse.major": b"1", b"GNU.sparse.minor": b"0"}


class Refused(Exception):
    """The archive holds what is never unpacked; the text says what."""


class Truncated(Refused):
    """The archive ends before its end mark."""


class Member:
    """One entry: `parts` are the checked names of its path, none of which leads anywhere else.

    A file with holes has `ranges`, where its data is. When it is read, `stored` is how much of the archive it takes
    with the list of them, which `read_ranges` gives. `records` are more records of its extended header. `owner` is a
    user and a group, and is not read.
    """

    __slots__ = ("kind", "link", "mode", "mtime", "owner", "parts", "ranges", "records", "size", "stored")

    def __init__(
        self, kind: bytes, parts: list[bytes], mode: int = 0o644, size: int = 0, mtime: int = 0, link: bytes = b""
    ) -> None:
        self.kind = kind
        self.parts = parts
        self.mode = mode
        self.size = size
        self.mtime = mtime
        self.link = link
        self.ranges: list[tuple[int, int]] | None = None
        self.stored: int | None = None
        self.records: dict[bytes, bytes] = {}
        self.owner = (0, 0)


def padding(size: int) -> int:
    """Return the bytes that are missing to a whole block."""
    return -size % BLOCK


def encode_member(member: Member) -> bytes:
    """Return the header blocks of a member; what does not fit in the old fields goes in a pax header before it."""
    name = b"./" + b"/".join(member.parts)
    if member.kind == DIRECTORY and member.parts:
        name += b"/"
    if member.ranges is not None:
        return encode_sparse(member, name)
    extended = [pax_record(key, value) for key, value in member.records.items()]
    for key, value, most in ((b"path", name, 100), (b"linkpath", member.link, 100)):
        if len(value) > most:
            extended.append(pax_record(key, value))
    if member.size >= MOST_OCTAL:
        extended.append(pax_record(b"size", b"%d" % member.size))
    plain = header(name[:100], member.kind, member.mode, member.size, member.mtime, member.link[:100], member.owner)
    if not extended:
        return plain
    data = b"".join(extended)
    first = header(b"@", PAX, 0o644, len(data), 0, b"")
    return first + data + bytes(padding(len(data))) + plain


def encode_sparse(member: Member, name: bytes) -> bytes:
    """Encode a file with holes, as GNU tar does in its format 1.0: a list of where its data belongs, then the data."""
    assert member.ranges is not None
    ranges = [*member.ranges, (member.size, member.size)]
    numbers = [len(ranges)] + [number for start, end in ranges for number in (start, end - start)]
    places = b"".join([b"%d\n" % number for number in numbers])
    places += bytes(padding(len(places)))
    stored = len(places) + sum([end - start for start, end in ranges])
    facts = {**SPARSE, b"GNU.sparse.name": name, b"GNU.sparse.realsize": b"%d" % member.size}
    facts.update(member.records)
    if stored >= MOST_OCTAL:
        facts[b"size"] = b"%d" % stored
    data = b"".join([pax_record(key, value) for key, value in facts.items()])
    first = header(b"@", PAX, 0o644, len(data), 0, b"")
    plain = header(b"./GNUSparseFile.0", FILE, member.mode, stored, member.mtime, b"", member.owner)
    return first + data + bytes(padding(len(data))) + plain + places


def read_ranges(source: Source, member: Member) -> list[tuple[int, int]]:
    """Read the map of a sparse file, checked: in order, within the file, and all that is stored."""
    assert member.stored is not None
    name = shown(b"/".join(member.parts))
    numbers, taken = read_numbers(source, member.stored, name)
    ranges: list[tuple[int, int]] = []
    at = total = 0
    for start, length in zip(numbers[::2], numbers[1::2]):
        if start < at or start + length > member.size:
            raise Refused("a sparse file whose pieces overlap: %s" % name)
        at = start + length
        total += length
        ranges.append((start, at))
    if total != member.stored - taken:
        raise Refused("a sparse file with other pieces than it says: %s" % name)
    return ranges


def read_numbers(source: Source, most: int, name: str) -> tuple[list[int], int]:
    """Return the numbers of a list that begins with half of how many there are, and how many bytes it takes."""
    data = b""
    taken = 0
    numbers: list[int] = []
    while not numbers or len(numbers) < 2 * numbers[0] + 1:
        if taken + BLOCK > most or numbers[:1] > [MOST_RANGES + 1]:
            raise Refused("a sparse file with too long a list: %s" % name)
        *lines, data = (data + source.read(BLOCK)).split(b"\n")
        taken += BLOCK
        numbers += [decimal(line) for line in lines]
        if len(data) > BLOCK:
            raise Refused("a sparse file with a damaged list: %s" % name)
    return numbers[1 : 2 * numbers[0] + 1], taken


def pax_record(key: bytes, value: bytes) -> bytes:
    """Encode a pax record, whose length counts itself."""
    rest = b" " + key + b"=" + value + b"\n"
    length = len(rest)
    while len(b"%d" % length) + len(rest) != length:
        length = len(b"%d" % length) + len(rest)
    return b"%d" % length + rest


def header(
    name: bytes, kind: bytes, mode: int, size: int, mtime: int, link: bytes, owner: tuple[int, int] = (0, 0)
) -> bytes:
    """Return one block, with its checksum."""
    size = size if size < MOST_OCTAL else 0
    mtime = min(max(mtime, 0), MOST_OCTAL - 1)
    block = b"%-100b%07o\0%07o\0%07o\0%011o\0%011o\0        %c%-100bustar\x0000" % (
        name.ljust(100, b"\0"),
        mode & 0o1777,
        owner[0],
        owner[1],
        size,
        mtime,
        kind,
        link.ljust(100, b"\0"),
    )
    block = block.ljust(BLOCK, b"\0")
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def read_members(source: Source, lenient: bool = False, decode: Decode | None = None) -> Iterator[Member]:
    """Read the members of an archive one by one, each when the content of the one before has been taken.

    With `lenient`, as tar(1) does it: absolute names lose their slash, and symbolic links may lead anywhere. A `decode`
    of one's own takes more than `make_member`.
    """
    decode = decode or make_member
    for block, kind, size, extended in read_headers(source):
        yield decode(block, kind, size, extended, lenient)


def read_headers(source: Source) -> Iterator[tuple[bytes, bytes, int, dict[bytes, bytes]]]:
    """Read the header block of each member, its kind and size, and the records of the extended headers before it."""
    extended: dict[bytes, bytes] = {}
    headers = 0
    while True:
        block = source.read(BLOCK)
        if not any(block):
            if any(source.read(BLOCK)):
                raise Refused("the archive is damaged: a single empty block")
            return
        check_sum(block)
        kind = block[156:157]
        size = number(block[124:136])
        if kind in (PAX, PAX_GLOBAL, GNU_NAME, GNU_LINK):
            headers += 1
            if headers > MOST_HEADERS:
                raise Refused("more extended headers than any file needs")
            data = read_extended(source, size)
            if kind == PAX:
                extended.update(pax_records(data))
            elif kind != PAX_GLOBAL:
                extended[b"path" if kind == GNU_NAME else b"linkpath"] = data.rstrip(b"\0")
            continue
        yield block, kind, size, extended
        extended = {}
        headers = 0


def read_extended(source: Source, size: int) -> bytes:
    """Return the content of an extended header."""
    if size > MOST_EXTENDED:
        raise Refused("an extended header of %d bytes" % size)
    data = source.read(size)
    source.read(padding(size))
    return data


def make_member(block: bytes, kind: bytes, size: int, extended: dict[bytes, bytes], lenient: bool) -> Member:
    """Decode a header, checked."""
    name, link = read_names(block, extended)
    if b"size" in extended:
        size = decimal(extended[b"size"])
    stored = None
    if any(key.startswith(b"GNU.sparse") for key in extended):
        name = check_sparse(extended, kind, name)
        stored, size = size, decimal(extended[b"GNU.sparse.realsize"])
    if kind in REGULAR:
        kind = DIRECTORY if name.endswith(b"/") else FILE
    if kind not in (FILE, HARD_LINK, SYMLINK, DIRECTORY):
        raise Refused("an entry that is no file, directory or link: %s" % shown(name))
    if kind != FILE:
        size = 0
    if lenient:
        name = name.lstrip(b"/")
        link = link.lstrip(b"/") if kind == HARD_LINK else link
    parts = check_name(name)
    if not parts and kind != DIRECTORY:
        raise Refused("a file without a name")
    if kind == SYMLINK and (not lenient or not link or b"\0" in link):
        check_link(parts, link)
    member = Member(kind, parts, number(block[100:108]) & 0o777, size, number(block[136:148]), link)
    member.stored = stored
    return member


def read_names(block: bytes, extended: dict[bytes, bytes]) -> tuple[bytes, bytes]:
    """Return the path of a member and the target of a link, as they are written: nothing is checked."""
    name = text(block[:100])
    if block[257:263] == b"ustar\0" and block[345]:
        name = text(block[345:500]) + b"/" + name
    return extended.get(b"path", name), extended.get(b"linkpath", text(block[157:257]))


def check_sparse(extended: dict[bytes, bytes], kind: bytes, name: bytes) -> bytes:
    """Return the name of a file with holes; only the format that we write is read."""
    is_known = all(extended.get(key) == value for key, value in SPARSE.items())
    if not is_known or kind not in REGULAR or b"GNU.sparse.realsize" not in extended:
        raise Refused("a sparse file of an unknown format: %s" % shown(name))
    name = extended.get(b"GNU.sparse.name", name)
    if name.endswith(b"/"):
        raise Refused("a sparse file that is a directory: %s" % shown(name))
    return name


def check_name(name: bytes) -> list[bytes]:
    """Return the names on the way; none that is absolute or goes up."""
    if name.startswith(b"/"):
        raise Refused("an absolute path: %s" % shown(name))
    parts = [part for part in name.split(b"/") if part not in (b"", b".")]
    if b".." in parts:
        raise Refused("a path with `..`: %s" % shown(name))
    if b"\0" in name or len(name) > MOST_PATH:
        raise Refused("an impossible path: %s" % shown(name))
    return parts


def check_link(parts: list[bytes], link: bytes) -> None:
    """Check a symbolic link: it may go up at its beginning only, and not above the top.

    Then it stays below the top also when it passes through other links of the archive: each of those does.
    """
    steps = [part for part in link.split(b"/") if part not in (b"", b".")]
    up = 0
    while up < len(steps) and steps[up] == b"..":
        up += 1
    if not link or link.startswith(b"/") or b".." in steps[up:] or up > len(parts) - 1 or b"\0" in link:
        raise Refused("a link that may lead out: %s -> %s" % (shown(b"/".join(parts)), shown(link)))


def check_sum(block: bytes) -> None:
    """Return whether the checksum is right: whether this is a header at all."""
    digits = block[148:156].strip(b" \0")
    if digits.strip(b"01234567") or int(digits or b"0", 8) != sum(block[:148]) + 8 * 32 + sum(block[156:]):
        raise Refused("this is no tar archive, or it is damaged")


def number(field: bytes) -> int:
    """Octal digits, or binary when the first bit is set."""
    if field[0] == 0x80:
        value = int.from_bytes(field[1:], "big")
    else:
        digits = field.strip(b" \0")
        if digits.strip(b"01234567"):
            raise Refused("a number that is none: %r" % field)
        value = int(digits or b"0", 8)
    if value > MOST_SIZE:
        raise Refused("a number beyond all bounds: %d" % value)
    return value


def decimal(field: bytes) -> int:
    """Return a size in a pax record."""
    if not field.isdigit() or len(field) > 18:
        raise Refused("a size that is none: %r" % field[:40])
    return int(field)


def pax_records(data: bytes) -> dict[bytes, bytes]:
    """Decode an extended header."""
    records = {}
    at = 0
    while at < len(data):
        space = data.find(b" ", at, at + 8)
        if space < 0:
            raise Refused("a damaged extended header")
        length = decimal(data[at:space])
        record = data[space + 1 : at + length]
        key, equals, value = record.partition(b"=")
        if length <= space + 1 - at or not equals or not value.endswith(b"\n") or at + length > len(data):
            raise Refused("a damaged extended header")
        records[key] = value[:-1]
        at += length
    return records


def text(field: bytes) -> bytes:
    """Return a field up to its first NUL."""
    return field.split(b"\0", 1)[0]


def shown(name: bytes) -> str:
    """Return a name in a message."""
    return name[:200].decode("utf-8", "backslashreplace")
