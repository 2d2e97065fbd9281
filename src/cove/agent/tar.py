"""The tar format: headers made, and headers read as from an enemy. pax(1), tar(5)."""

BLOCK = 512
MOST_EXTENDED = 65536
MOST_HEADERS = 8
MOST_PATH = 4095
FILE, HARD_LINK, SYMLINK, DIRECTORY = b"0", b"1", b"2", b"5"
REGULAR = (FILE, b"\0", b"7")
PAX, PAX_GLOBAL, GNU_NAME, GNU_LINK = b"x", b"g", b"L", b"K"
MOST_OCTAL = 8 << 30
MOST_SIZE = 1 << 62


class Refused(Exception):
    """The archive holds what is never unpacked; the text says what."""


class Truncated(Refused):
    """The archive ends before its end mark."""


class Member:
    """One entry: `parts` are the checked names of its path, none of which leads anywhere else."""

    __slots__ = ("kind", "link", "mode", "mtime", "parts", "size")

    def __init__(self, kind, parts, mode=0o644, size=0, mtime=0, link=b""):
        # type: (bytes, list[bytes], int, int, int, bytes) -> None
        self.kind = kind
        self.parts = parts
        self.mode = mode
        self.size = size
        self.mtime = mtime
        self.link = link


def padding(size):
    # type: (int) -> int
    """What is missing to a whole block."""
    return -size % BLOCK


def encode_member(member):
    # type: (Member) -> bytes
    """The header blocks of a member; what does not fit in the old fields goes in a pax header before it."""
    name = b"./" + b"/".join(member.parts)
    if member.kind == DIRECTORY and member.parts:
        name += b"/"
    extended = []
    for key, value, most in ((b"path", name, 100), (b"linkpath", member.link, 100)):
        if len(value) > most:
            extended.append(pax_record(key, value))
    if member.size >= MOST_OCTAL:
        extended.append(pax_record(b"size", b"%d" % member.size))
    plain = header(name[:100], member.kind, member.mode, member.size, member.mtime, member.link[:100])
    if not extended:
        return plain
    data = b"".join(extended)
    first = header(b"@", PAX, 0o644, len(data), 0, b"")
    return first + data + bytes(padding(len(data))) + plain


def pax_record(key, value):
    # type: (bytes, bytes) -> bytes
    """Its length counts itself."""
    rest = b" " + key + b"=" + value + b"\n"
    length = len(rest)
    while len(b"%d" % length) + len(rest) != length:
        length = len(b"%d" % length) + len(rest)
    return b"%d" % length + rest


def header(name, kind, mode, size, mtime, link):
    # type: (bytes, bytes, int, int, int, bytes) -> bytes
    """One block, with its checksum."""
    size = size if size < MOST_OCTAL else 0
    mtime = min(max(mtime, 0), MOST_OCTAL - 1)
    block = b"%-100b%07o\0%07o\0%07o\0%011o\0%011o\0        %c%-100bustar\x0000" % (
        name.ljust(100, b"\0"),
        mode & 0o777,
        0,
        0,
        size,
        mtime,
        kind,
        link.ljust(100, b"\0"),
    )
    block = block.ljust(BLOCK, b"\0")
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def read_members(source, lenient=False):
    # type: (Source, bool) -> Iterator[Member]
    """The members of an archive, each read when the content of the one before has been taken; ends at its end mark.

    With `lenient`, as tar(1) does it: absolute names lose their slash, and symbolic links may lead anywhere.
    """
    extended = {}  # type: dict[bytes, bytes]
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
        yield make_member(block, kind, size, extended, lenient)
        extended = {}
        headers = 0


def read_extended(source, size):
    # type: (Source, int) -> bytes
    """The content of an extended header."""
    if size > MOST_EXTENDED:
        raise Refused("an extended header of %d bytes" % size)
    data = source.read(size)
    source.read(padding(size))
    return data


def make_member(block, kind, size, extended, lenient):
    # type: (bytes, bytes, int, dict[bytes, bytes], bool) -> Member
    """What a header says, checked."""
    name = text(block[:100])
    if block[257:263] == b"ustar\0" and block[345]:
        name = text(block[345:500]) + b"/" + name
    name = extended.get(b"path", name)
    link = extended.get(b"linkpath", text(block[157:257]))
    if any(key.startswith(b"GNU.sparse") for key in extended):
        raise Refused("a sparse file: %s" % shown(name))
    if b"size" in extended:
        size = decimal(extended[b"size"])
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
    return Member(kind, parts, number(block[100:108]) & 0o777, size, number(block[136:148]), link)


def check_name(name):
    # type: (bytes) -> list[bytes]
    """The names on the way; none that is absolute or goes up."""
    if name.startswith(b"/"):
        raise Refused("an absolute path: %s" % shown(name))
    parts = [part for part in name.split(b"/") if part not in (b"", b".")]
    if b".." in parts:
        raise Refused("a path with `..`: %s" % shown(name))
    if b"\0" in name or len(name) > MOST_PATH:
        raise Refused("an impossible path: %s" % shown(name))
    return parts


def check_link(parts, link):
    # type: (list[bytes], bytes) -> None
    """A symbolic link may go up at its beginning only, and not above the top.

    Then it stays below the top also when it passes through other links of the archive: each of those does.
    """
    steps = [part for part in link.split(b"/") if part not in (b"", b".")]
    up = 0
    while up < len(steps) and steps[up] == b"..":
        up += 1
    if not link or link.startswith(b"/") or b".." in steps[up:] or up > len(parts) - 1 or b"\0" in link:
        raise Refused("a link that may lead out: %s -> %s" % (shown(b"/".join(parts)), shown(link)))


def check_sum(block):
    # type: (bytes) -> None
    """Whether this is a header at all."""
    if number(block[148:156]) != sum(block[:148]) + 8 * 32 + sum(block[156:]):
        raise Refused("this is no tar archive, or it is damaged")


def number(field):
    # type: (bytes) -> int
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


def decimal(field):
    # type: (bytes) -> int
    """A size in a pax record."""
    if not field.isdigit() or len(field) > 18:
        raise Refused("a size that is none: %r" % field[:40])
    return int(field)


def pax_records(data):
    # type: (bytes) -> dict[bytes, bytes]
    """What an extended header says."""
    records = {}
    at = 0
    while at < len(data):
        space = data.find(b" ", at, at + 8)
        length = decimal(data[at:space]) if space > 0 else 0
        record = data[space + 1 : at + length]
        key, equals, value = record.partition(b"=")
        if length <= space + 1 - at or not equals or not value.endswith(b"\n") or at + length > len(data):
            raise Refused("a damaged extended header")
        records[key] = value[:-1]
        at += length
    return records


def text(field):
    # type: (bytes) -> bytes
    """A field up to its first NUL."""
    return field.split(b"\0", 1)[0]


def shown(name):
    # type: (bytes) -> str
    """A name in a message."""
    return name[:200].decode("utf-8", "backslashreplace")
