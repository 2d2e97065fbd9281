"""The helper that enters a jail's namespaces: performs steps that come one by one, passes descriptors back, and ends.

It executes nothing, reads no file that lies inside and follows no link there. Every path inside is resolved once, by
openat2(2); what is mounted is mounted by descriptor. A step is `verb NUL field …`, with its descriptors. A packet on
its socket has steps that are performed in turn, up to the first that fails; a line before them says for each how many
bytes and descriptors it has. It is answered by `ok`, with descriptors, or by `error NUL errno NUL which NUL subject`.
An alarm ends the helper, whatever it waits for.

Standard library only, and as little of that as possible: starts of jails wait for its import. Runs as a program, or in
a fork of a process that has it imported; root performs some steps in a thread.
"""

import _ctypes
import _signal
import _socket
import errno
import posix
import stat
import sys

PACKET_BYTES = 1 << 16
MOST_DESCRIPTORS = 253  # SCM_MAX_FD

# Numbers that all ABIs share.
OPEN_TREE = 428
MOVE_MOUNT = 429
FSOPEN = 430
FSCONFIG = 431
FSMOUNT = 432
FSPICK = 433
OPENAT2 = 437
MOUNT_SETATTR = 442

CLONE_FS = 0x200
CLONE_NEWNS = 0x20000
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000

AT_CURRENT_DIRECTORY = -100
AT_EMPTY_PATH = 0x1000
OPEN_TREE_CLONE = 1
OPEN_TREE_CLOEXEC = posix.O_CLOEXEC
AT_RECURSIVE = 0x8000
MOVE_MOUNT_EMPTY_SOURCE = 0x4
MOVE_MOUNT_EMPTY_PATHS = MOVE_MOUNT_EMPTY_SOURCE | 0x40
FSPICK_FLAGS = 1 | 2  # close on exec, do not follow a link
FSOPEN_CLOEXEC = FSMOUNT_CLOEXEC = 1
FSCONFIG_SET_FLAG = 0
FSCONFIG_SET_STRING = 1
FSCONFIG_CMD_CREATE = 6
FSCONFIG_CMD_RECONFIGURE = 7
RESOLVE_NO_LINKS = 0x2 | 0x4  # magic links, symbolic links
NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
READ_ONLY = 0x1
NO_PRIVILEGES = 0x2 | 0x4  # no set-user-id, no devices
MOUNT_ATTRIBUTES = READ_ONLY | NO_PRIVILEGES
NO_LINKS = 0x200000  # symbolic links are read, and never followed: mount_setattr(2)
AT_STATX_DONT_SYNC = 0x4000
STATX_ATTR_MOUNT_ROOT = 0x2000
STATX_BYTES = 256
ATTRIBUTES_AT, INODE_AT, DEVICE_AT = 8, 32, 136  # in struct statx
MS_PRIVATE = 0x40000
MS_BIND, MS_REC = 0x1000, 0x4000
MNT_DETACH = 2
MOUNT_ATTR_IDMAP = 0x100000
SOL_SOCKET = 1
PR_SET_DUMPABLE = 4
PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE = 47, 2
CAPABILITY_VERSION = 0x20080522
FILE_CAPABILITIES = (0, 1, 2, 3, 4)  # chown, all of DAC, what owners may, set-id bits: capabilities(7)
NETLINK_ROUTE = 0
NETLINK_NETFILTER = 12
NETLINK_HEADER_BYTES = 16

PATH = posix.O_PATH | posix.O_NOFOLLOW | posix.O_CLOEXEC

# Directory to put layers together over: every machine has it, and the mounts are a copy of the host's of our own.
WORKBENCH = b"/proc"
SETTINGS = b"/proc/sys"
UPPER, MERGED = b"upper", b"merged"
# Where a new root stands for a moment: a directory that every jail has.
ROOT_STAND = "/tmp"


class _Long(_ctypes._SimpleCData):  # type: ignore[type-arg]  # no subscript when it runs
    _type_ = "l"


class _Byte(_ctypes._SimpleCData):  # type: ignore[type-arg]  # no subscript when it runs
    _type_ = "B"


class _Buffer(_ctypes.Array):  # type: ignore[type-arg]  # no subscript when it runs
    _type_ = _Byte
    _length_ = STATX_BYTES


class _Function(_ctypes.CFuncPtr):
    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
    _restype_ = _Long


_library = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]  # the program itself


def _function(name: str) -> _Function:
    return _Function(_ctypes.dlsym(_library, name))


_syscall, _setns, _unshare, _mount, _umount2, _pivot_root, _prctl, _statx, _capset = map(
    _function, ("syscall", "setns", "unshare", "mount", "umount2", "pivot_root", "prctl", "statx", "capset")
)


class Failed(Exception):
    """A step that the kernel refused: `number` is its errno, `subject` what it was about, `at` its place."""

    def __init__(self, number: int, subject: str, at: int = 0) -> None:
        super().__init__(number, subject)
        self.number = number
        self.subject = subject
        self.at = at


def call(subject: str, function: _Function, *arguments: object) -> int:
    """Call a function of the C library that returns -1 when it fails."""
    result: int = function(*arguments)
    if result < 0:
        raise Failed(_ctypes.get_errno(), subject)
    return result


class Performer:
    """Performs steps in order.

    `trees` are the detached mounts made so far; `clones`, which are such too, and `sockets` those to be given, which
    `given` has once they are. `parts` are detached mounts of merged layers by name, `bench` is where those are put
    together.
    """

    def __init__(self) -> None:
        self.trees: list[int] = []
        self.parts: dict[bytes, int] = {}
        self.bench = -1
        self.clones: list[int] = []
        self.descriptors = -1
        self.settings = -1
        self.sockets: list[_socket.socket] = []
        self.given: list[int] = []
        self.verbs = {
            b"begin": self.begin,
            b"give": self.give,
            b"become": self.become,
            b"user": self.enter_user,
            b"sysctl": self.set_sysctl,
            b"setting": self.set_sysctl,
            b"settings": self.open_settings,
            b"copytree": self.copy_tree,
            b"copy": self.copy_mounts,
            b"tree": self.clone_tree,
            b"bench": self.make_workbench,
            b"layer": self.add_layer,
            b"merge": self.merge_layers,
            b"readonly": self.make_read_only,
            b"swap": self.swap,
            b"mounts": self.enter_mounts,
            b"options": self.reconfigure,
            b"bind": self.bind,
            b"seal": self.seal,
            b"move": self.move,
            b"detach": self.detach,
            b"place": self.place_tree,
            b"clone": self.clone_directory,
            b"attach": self.attach_tree,
            b"unmount": self.unmount,
            b"rmdir": self.remove_directory,
            b"isolate": self.isolate_user,
            b"names": self.open_names,
            b"net": self.enter_network,
            b"socket": self.open_socket,
            b"listen": self.listen,
            b"netlink": self.send_netlink,
            b"lead": self.lead,
        }

    def perform_all(self, steps: list[tuple[bytes, list[int]]]) -> None:
        """Perform steps up to the first that fails. Raises Failed."""
        for at, (step, descriptors) in enumerate(steps):
            try:
                self.perform(step, descriptors)
            except Failed as failure:
                failure.at = at
                raise

    def perform(self, step: bytes, descriptors: list[int]) -> None:
        """Perform one step, whose descriptors are not closed. Raises Failed."""
        verb, *fields = step.split(b"\0")
        try:
            self.verbs[verb](fields, descriptors)
        except OSError as error:
            subject = b" ".join([verb, *fields[:1]]).decode("utf-8", "replace")
            raise Failed(error.errno or errno.EIO, subject) from None

    def close(self) -> None:
        """Close what was opened; sockets that were given live on where they went."""
        for tree in (*self.trees, *self.clones, *self.parts.values(), *([self.bench] if self.bench >= 0 else [])):
            posix.close(tree)
        for opened in (self.descriptors, self.settings):
            if opened >= 0:
                posix.close(opened)
        for sock in self.sockets:
            sock.close()

    def begin(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Let an alarm end this process after so many seconds."""
        _signal.alarm(int(fields[0]))

    def give(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Have the sockets and clones go with the answer."""
        self.given = [*[each.fileno() for each in self.sockets], *self.clones]

    def become(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Drop to another user, in that user's group alone, for good: in a fork of root's process."""
        user_id = int(fields[0])
        posix.setgroups([])
        posix.setresgid(user_id, user_id, user_id)
        posix.setresuid(user_id, user_id, user_id)
        call("itself", _prctl, PR_SET_DUMPABLE, 0, 0, 0, 0)

    def enter_user(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Enter the user namespace that owns the others: its rights open them. For a process of one thread."""
        call("the jail's user namespace", _setns, descriptors[0], CLONE_NEWUSER)

    def enter_mounts(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Enter the mount namespace. From here on paths are the jail's."""
        call("a directory of one's own", _unshare, CLONE_FS)
        call("the jail's mount namespace", _setns, descriptors[0], CLONE_NEWNS)

    def enter_network(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Enter the network namespace."""
        call("the jail's network namespace", _setns, descriptors[0], CLONE_NEWNET)

    def set_sysctl(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Write a value of the user or network namespace: those of who opens them are there (namespaces(7))."""
        path, value = fields
        if self.settings >= 0:
            name = path.removeprefix(SETTINGS + b"/")
            opened = posix.open(name, posix.O_WRONLY | posix.O_CLOEXEC, dir_fd=self.settings)
        else:
            opened = posix.open(path, posix.O_WRONLY | posix.O_CLOEXEC)
        try:
            posix.write(opened, value)
        finally:
            posix.close(opened)

    def open_settings(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Hold the settings of the kernel: the workbench stands over /proc later."""
        self.settings = posix.open(SETTINGS, PATH)

    def copy_tree(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Run a program that copies a directory of the host, with the rights over it that the user namespace gives.

        The program sees it by a mount that follows no link: code inside may change it meanwhile.
        """
        path, *arguments, target, source = fields
        enter_without_links(source.decode("utf-8", "surrogateescape"), descriptors[0])
        mask = sum([1 << each for each in FILE_CAPABILITIES]).to_bytes(4, sys.byteorder)
        header = CAPABILITY_VERSION.to_bytes(4, sys.byteorder) + bytes(4)
        call("rights", _capset, header, mask * 3 + bytes(12))
        for number in FILE_CAPABILITIES:
            call("rights", _prctl, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, number, 0, 0)
        program = posix.posix_spawn(path, [*arguments, b".", target], {})
        if posix.waitpid(program, 0)[1]:
            raise Failed(errno.EIO, b" to ".join((source, target)).decode("utf-8", "replace"))

    def copy_mounts(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Have a copy of the host's mounts, where the jail's rights hold: only from there can a mount be cloned."""
        call("a copy of the mounts", _unshare, CLONE_NEWNS)

    def clone_tree(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Clone the mount of a host's file, read-only. The descriptor says which file it has to be."""
        path = fields[0].decode("utf-8", "surrogateescape")
        tree = clone_source(path, descriptors[0])
        self.trees.append(tree)
        set_attributes(tree, path, MOUNT_ATTRIBUTES)

    def make_workbench(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Mount an empty file system where nobody but this process sees it: after `copy`."""
        context = call("tmpfs", _syscall, FSOPEN, b"tmpfs", FSOPEN_CLOEXEC)
        try:
            call("tmpfs", _syscall, FSCONFIG, context, FSCONFIG_CMD_CREATE, None, None, 0)
            self.bench = call("tmpfs", _syscall, FSMOUNT, context, FSMOUNT_CLOEXEC, NO_PRIVILEGES)
        finally:
            posix.close(context)
        call("tmpfs", _syscall, MOVE_MOUNT, self.bench, b"", AT_CURRENT_DIRECTORY, WORKBENCH, MOVE_MOUNT_EMPTY_SOURCE)
        posix.mkdir(MERGED, 0o700, dir_fd=self.bench)

    def add_layer(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Put a layer, or the upper, on the workbench: a directory of the host, or a detached mount of it."""
        name, kind, source = fields
        path = source.decode("utf-8", "surrogateescape")
        tree = posix.dup(descriptors[0]) if kind == b"mount" else clone_source(path, descriptors[0])
        try:
            set_attributes(tree, path, NO_PRIVILEGES if name == UPPER else MOUNT_ATTRIBUTES)
            posix.mkdir(name, 0o700, dir_fd=self.bench)
            call(path, _syscall, MOVE_MOUNT, tree, b"", self.bench, name, MOVE_MOUNT_EMPTY_SOURCE)
        finally:
            posix.close(tree)

    def merge_layers(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Mount the layers, top first, below the upper, and clone the parts; without layers, those of the upper."""
        layers, parts = fields[0].split(b":") if fields[0] else [], fields[1:]
        top = UPPER + b"/data"
        if layers:
            posix.fchdir(self.bench)
            merged = mount_overlay(layers)
            call("layers", _syscall, MOVE_MOUNT, merged, b"", self.bench, MERGED, MOVE_MOUNT_EMPTY_SOURCE)
            posix.close(merged)
            top = MERGED
        for part in parts:
            flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC
            name = top + b"/" + part
            self.parts[part] = call("layers", _syscall, OPEN_TREE, self.bench, name, flags)

    def make_read_only(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Let nobody write by these mounts any more: EBUSY, and nothing has changed, while somebody has a file open."""
        done: list[int] = []
        try:
            for field in fields:
                path = field.decode("utf-8", "surrogateescape")
                place = open_path(path)
                try:
                    set_attributes(place, path, READ_ONLY)
                except Failed:
                    posix.close(place)
                    raise
                done.append(place)
        except Failed:
            for place in done:
                set_attributes(place, "a mount", 0, READ_ONLY)
            raise
        finally:
            for place in done:
                posix.close(place)

    def swap(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Put a part where another mount is, which goes; mounts below that one stay. For a jail that is frozen."""
        part, target, *below = fields
        path = target.decode("utf-8", "surrogateescape")
        kept = [(field.decode("utf-8", "surrogateescape"), clone_mounted(field)) for field in below]
        if path == "/":
            self._replace_root(self.parts[part], kept)
            return
        call(path, _umount2, target, MNT_DETACH)
        self._put(self.parts[part], path, True)
        self._put_all(kept, "")

    def _replace_root(self, tree: int, kept: list[tuple[str, int]]) -> None:
        """Make a tree the root of everything in this mount namespace; the old one goes with all that is in it.

        Whoever has the old root, and stands there, has the new one from now on: pivot_root(2). The agent runs
        meanwhile, and finds its own files at any time: they are in the new root before that is the root.
        """
        self._put(tree, ROOT_STAND, True)
        self._put_all(kept, ROOT_STAND)
        posix.fchdir(tree)
        call("the root", _pivot_root, b".", b".")
        call("the old root", _umount2, b".", MNT_DETACH)
        posix.chdir("/")

    def _put_all(self, trees: list[tuple[str, int]], above: str) -> None:
        for place, tree in trees:
            self._put(tree, above + place, stat.S_ISDIR(posix.fstat(tree).st_mode))
            posix.close(tree)

    def _put(self, tree: int, target: str, is_directory: bool) -> None:
        place = open_or_make(target, is_directory)
        try:
            call(target, _syscall, MOVE_MOUNT, tree, b"", place, b"", MOVE_MOUNT_EMPTY_PATHS)
        finally:
            posix.close(place)

    def place_tree(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Mount a tree on a file that is there; one that stands there already stays."""
        tree, target = self.trees[int(fields[0])], fields[1].decode("utf-8", "surrogateescape")
        try:
            place = open_path(target)
        except Failed as failure:
            if fields[2:] and failure.number in NO_FILE:
                return
            raise
        try:
            if stat.S_ISDIR(posix.fstat(place).st_mode):
                raise Failed(errno.EISDIR, target)
            if identify(place) != identify(tree):
                call(target, _syscall, MOVE_MOUNT, tree, b"", place, b"", MOVE_MOUNT_EMPTY_PATHS)
        finally:
            posix.close(place)

    def clone_directory(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Clone the mounts at a path, to be given. A descriptor says which file that has to be."""
        path = fields[1].decode("utf-8", "surrogateescape")
        found = open_path(path)
        try:
            if descriptors and identify(found) != identify(descriptors[0]):
                raise Failed(errno.ESTALE, path)
            self.clones.append(clone(found, path, read_only=fields[0] == b"ro"))
        finally:
            posix.close(found)

    def attach_tree(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Mount a tree that came from outside; its mount point is made where it is missing."""
        self._put(descriptors[0], fields[0].decode("utf-8", "surrogateescape"), fields[1] == b"directory")

    def open_names(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Hold the directory in which the host's procfs names our descriptors: umount2(2) takes names alone."""
        self.descriptors = posix.open("/proc/self/fd", PATH)

    def unmount(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Take away the mount with that root; ESTALE when another, or none, stands there. Who uses it keeps it.

        Asks nobody who serves it: that one may be dead. By its descriptor, as the host's procfs names it: code inside
        that swaps names meanwhile has nothing else unmounted.
        """
        target = fields[0].decode("utf-8", "surrogateescape")
        place = open_path(target)
        try:
            if not is_same_mount(identify_mount(place), fields[1]):
                raise Failed(errno.ESTALE, target)
            posix.fchdir(self.descriptors)
            call(target, _umount2, b"%d" % place, MNT_DETACH)
        finally:
            posix.close(place)
            posix.chdir("/")

    def remove_directory(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Remove an empty directory that was made as a mount point. One that is used, or gone, is left alone."""
        parent, _, name = fields[0].decode("utf-8", "surrogateescape").rpartition("/")
        above = open_path(parent or "/")
        try:
            posix.rmdir(name, dir_fd=above)
        except OSError:
            return
        finally:
            posix.close(above)

    def isolate_user(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Enter a new user namespace, for others to map and to hold."""
        call("a user namespace", _unshare, CLONE_NEWUSER)

    def bind(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Bind sources to targets, in pairs. By path: for a jail in which nothing runs yet."""
        for source, target in zip(fields[::2], fields[1::2], strict=True):
            call(target.decode("utf-8", "surrogateescape"), _mount, source, target, None, MS_BIND, None)

    def seal(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Let nobody write below a directory; what is mounted there stays. By path: where nothing runs yet."""
        path = fields[0].decode("utf-8", "surrogateescape")
        call(path, _mount, fields[0], fields[0], None, MS_BIND | MS_REC, None)
        place = open_path(path)
        try:
            set_attributes(place, path, MOUNT_ATTRIBUTES)
        finally:
            posix.close(place)

    def reconfigure(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Set options of a file system, `name=value` each; keeps all others. For a jail in which nothing runs yet."""
        path, *options = fields
        subject = path.decode("utf-8", "surrogateescape")
        context = call(subject, _syscall, FSPICK, AT_CURRENT_DIRECTORY, path, FSPICK_FLAGS)
        try:
            for option in options:
                name, _, value = option.partition(b"=")
                call(subject, _syscall, FSCONFIG, context, FSCONFIG_SET_STRING, name, value, 0)
            call(subject, _syscall, FSCONFIG, context, FSCONFIG_CMD_RECONFIGURE, None, None, 0)
        finally:
            posix.close(context)

    def move(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Move a mount; what it is decides whether its mount point is made as a directory or a file."""
        origin, target = (field.decode("utf-8", "surrogateescape") for field in fields)
        source = open_path(origin)
        try:
            self._put(source, target, stat.S_ISDIR(posix.fstat(source).st_mode))
        finally:
            posix.close(source)

    def detach(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Take a mount, and all below it, out of sight."""
        call(fields[0].decode(), _umount2, fields[0], MNT_DETACH)

    def open_socket(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Bind a socket, `stream` or `datagram`, to an address of the jail. `listen` makes all streams listen."""
        kind = _socket.SOCK_STREAM if fields[0] == b"stream" else _socket.SOCK_DGRAM
        address, port = fields[1].decode(), int(fields[2])
        sock = _socket.socket(_socket.AF_INET, kind | _socket.SOCK_CLOEXEC | _socket.SOCK_NONBLOCK)
        self.sockets.append(sock)
        if kind == _socket.SOCK_STREAM:
            sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
        try:
            sock.bind((address, port))
        except OSError as error:
            raise Failed(error.errno or errno.EIO, str(port)) from None

    def listen(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Make every stream listen: a port that another socket listens on since is found out here."""
        for sock in self.sockets:
            if sock.type & 0xF == _socket.SOCK_STREAM:
                try:
                    sock.listen(int(fields[0]))
                except OSError as error:
                    raise Failed(error.errno or errno.EIO, str(sock.getsockname()[1])) from None

    def send_netlink(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Send one rtnetlink message, given in hexadecimal digits, and wait for its acknowledgement."""
        ask_netlink(NETLINK_ROUTE, fields[0], "the loopback interface")

    def lead(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Bind a socket and send the nf_tables transaction that leads connections to it: both, or neither."""
        rules, address, port = fields
        self.open_socket([b"stream", address, port], descriptors)
        try:
            ask_netlink(NETLINK_NETFILTER, rules, "nf_tables")
        except BaseException:
            self.sockets.pop().close()
            raise


def ask_netlink(family: int, message: bytes, subject: str) -> None:
    """Send what is given in hexadecimal digits, and take the first answer: an error, or the acknowledgement.

    The kernel has answered when it has taken the message.
    """
    sock = _socket.socket(_socket.AF_NETLINK, _socket.SOCK_RAW | _socket.SOCK_CLOEXEC, family)
    try:
        sock.send(bytes.fromhex(message.decode()))
        answer = sock.recv(PACKET_BYTES, _socket.MSG_DONTWAIT)[NETLINK_HEADER_BYTES:][:4]
    finally:
        sock.close()
    number = -int.from_bytes(answer, sys.byteorder, signed=True)
    if number:
        raise Failed(number, subject)


def open_path(path: str) -> int:
    """Open what an absolute path leads to, without following a link: openat2(2)."""
    how = b"".join(each.to_bytes(8, sys.byteorder) for each in (PATH, 0, RESOLVE_NO_LINKS))
    name = path.encode("utf-8", "surrogateescape")
    return call(path, _syscall, OPENAT2, AT_CURRENT_DIRECTORY, name, how, len(how))


def clone_source(path: str, expected: int) -> int:
    """Clone the mount of a host's file, alone. The descriptor says which file it has to be."""
    found = open_path(path)
    try:
        if identify(found) != identify(expected):
            raise Failed(errno.ESTALE, path)
        return call(path, _syscall, OPEN_TREE, found, b"", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH)
    finally:
        posix.close(found)


def enter_without_links(path: str, expected: int) -> None:
    """Stand in a directory of the host, by a mount that shows it read-only and in which no link is followed."""
    tree = clone_source(path, expected)
    try:
        set_attributes(tree, path, MOUNT_ATTRIBUTES | NO_LINKS)
        posix.fchdir(tree)
    finally:
        posix.close(tree)


def clone_mounted(target: bytes) -> int:
    """Clone what is mounted there, with all below it."""
    path = target.decode("utf-8", "surrogateescape")
    found = open_path(path)
    try:
        flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH | AT_RECURSIVE
        return call(path, _syscall, OPEN_TREE, found, b"", flags)
    finally:
        posix.close(found)


def set_attributes(mount: int, subject: str, wanted: int, cleared: int = 0) -> None:
    """Set attributes of one mount: mount_setattr(2)."""
    attributes = b"".join(each.to_bytes(8, sys.byteorder) for each in (wanted, cleared)) + bytes(16)
    call(subject, _syscall, MOUNT_SETATTR, mount, b"", AT_EMPTY_PATH, attributes, len(attributes))


def mount_overlay(layers: list[bytes]) -> int:
    """Mount directories of the working directory on one another: overlayfs with the rights of its user alone.

    `volatile`: what is copied up is not synchronised with the disk at once.
    """
    context = call("an overlay", _syscall, FSOPEN, b"overlay", FSOPEN_CLOEXEC)
    try:
        values = {
            b"source": b"cove",
            b"lowerdir": b":".join(layers),
            b"upperdir": UPPER + b"/data",
            b"workdir": UPPER + b"/work",
        }
        for name, value in values.items():
            call("an overlay", _syscall, FSCONFIG, context, FSCONFIG_SET_STRING, name, value, 0)
        for name in (b"userxattr", b"volatile"):
            call("an overlay", _syscall, FSCONFIG, context, FSCONFIG_SET_FLAG, name, None, 0)
        call("an overlay", _syscall, FSCONFIG, context, FSCONFIG_CMD_CREATE, None, None, 0)
        return call("an overlay", _syscall, FSMOUNT, context, FSMOUNT_CLOEXEC, NO_PRIVILEGES)
    finally:
        posix.close(context)


def clone(source: int, subject: str, *, read_only: bool, id_map: int | None = None) -> int:
    """Clone the mounts at a descriptor as a detached tree, which shares no later mount with the host's.

    No set-user-id, no devices. `id_map` is a user namespace by whose map owners are translated.
    """
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH | AT_RECURSIVE
    tree = call(subject, _syscall, OPEN_TREE, source, b"", flags)
    wanted = MOUNT_ATTRIBUTES if read_only else MOUNT_ATTRIBUTES & ~1
    wanted |= 0 if id_map is None else MOUNT_ATTR_IDMAP
    attributes = b"".join(each.to_bytes(8, sys.byteorder) for each in (wanted, 0, MS_PRIVATE, id_map or 0))
    try:
        call(subject, _syscall, MOUNT_SETATTR, tree, b"", AT_EMPTY_PATH | AT_RECURSIVE, attributes, len(attributes))
    except Failed:
        posix.close(tree)
        raise
    return tree


def identify_mount(descriptor: int) -> tuple[int, int, int] | None:
    """Return device and inode of a mount's root; None for what is no root: statx(2).

    Asks the kernel alone, never who serves the files: that one may be dead. So it asks for no more than the kernel has
    at hand: a FUSE file system of another user has no inode to tell.
    """
    found = _Buffer()
    result: int = _statx(descriptor, b"", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, 0, _ctypes.byref(found))
    if result & 0xFFFFFFFF:  # an int, of which only the lower half counts
        raise Failed(_ctypes.get_errno(), "a mount")
    data = bytes(found)
    if not int.from_bytes(data[ATTRIBUTES_AT : ATTRIBUTES_AT + 8], sys.byteorder) & STATX_ATTR_MOUNT_ROOT:
        return None
    major, minor = (int.from_bytes(data[at : at + 4], sys.byteorder) for at in (DEVICE_AT, DEVICE_AT + 4))
    return major, minor, int.from_bytes(data[INODE_AT : INODE_AT + 8], sys.byteorder)


def is_same_mount(found: tuple[int, int, int] | None, expected: bytes) -> bool:
    """Return whether it is the mount `major:minor:inode`. Inode 0 is any: a FUSE mount has a device of its own."""
    major, minor, inode = map(int, expected.split(b":"))
    return found is not None and found[:2] == (major, minor) and inode in (0, found[2])


def open_or_make(target: str, is_directory: bool) -> int:
    """Open a mount point, making what is missing: each directory is opened, or made, below the one before it."""
    *parents, last = target.strip("/").split("/")
    place = posix.open("/", PATH)
    for name in parents:
        place = _step(place, name, True, target)
    return _step(place, last, is_directory, target)


def _step(directory: int, name: str, is_directory: bool, target: str) -> int:
    """Go down to a file or directory that is made if it is missing. The directory is closed."""
    try:
        try:
            found = posix.open(name, PATH, dir_fd=directory)
        except FileNotFoundError:
            _make(directory, name, is_directory)
            found = posix.open(name, PATH, dir_fd=directory)
    except OSError as error:
        raise Failed(error.errno or errno.EIO, target) from None
    finally:
        posix.close(directory)
    if stat.S_ISLNK(posix.fstat(found).st_mode):
        posix.close(found)
        raise Failed(errno.ELOOP, target)
    return found


def _make(directory: int, name: str, is_directory: bool) -> None:
    if is_directory:
        posix.mkdir(name, 0o755, dir_fd=directory)
    else:
        flags = posix.O_CREAT | posix.O_EXCL | posix.O_WRONLY | posix.O_CLOEXEC
        posix.close(posix.open(name, flags, 0o644, dir_fd=directory))


def identify(descriptor: int) -> tuple[int, int]:
    """Return device and inode, which stay the same under every name."""
    found = posix.fstat(descriptor)
    return found.st_dev, found.st_ino


def serve(sock: _socket.socket) -> None:
    """Perform packets of steps until the other end is closed. The first, `begin`, says how many seconds there are."""
    call("itself", _prctl, PR_SET_DUMPABLE, 0, 0, 0, 0)
    performer = Performer()
    while True:
        packet, descriptors = _receive(sock)
        if not packet:
            return
        answer = b"ok"
        try:
            performer.perform_all(_split(packet, descriptors))
        except Failed as failure:
            subject = failure.subject.encode("utf-8", "surrogateescape")
            answer = b"error\0%d\0%d\0%s" % (failure.number, failure.at, subject)
        _answer(sock, answer, performer.given)
        performer.given = []
        for descriptor in descriptors:
            posix.close(descriptor)


def _split(packet: bytes, descriptors: list[int]) -> list[tuple[bytes, list[int]]]:
    """Take a packet apart: `BYTES.DESCRIPTORS …` and a line's end, then the steps."""
    steps = []
    head, _, rest = packet.partition(b"\n")
    for sizes in head.split():
        length, count = map(int, sizes.split(b"."))
        steps.append((rest[:length], descriptors[:count]))
        rest, descriptors = rest[length:], descriptors[count:]
    return steps


def _receive(sock: _socket.socket) -> tuple[bytes, list[int]]:
    size = _socket.CMSG_SPACE(MOST_DESCRIPTORS * 4)
    packet, ancillary, _, _ = sock.recvmsg(PACKET_BYTES, size, _socket.MSG_CMSG_CLOEXEC)
    rights = b"".join([data for level, kind, data in ancillary if (level, kind) == (SOL_SOCKET, _socket.SCM_RIGHTS)])
    return packet, [int.from_bytes(rights[at : at + 4], sys.byteorder) for at in range(0, len(rights), 4)]


def _answer(sock: _socket.socket, packet: bytes, descriptors: list[int]) -> None:
    rights = b"".join([each.to_bytes(4, sys.byteorder) for each in descriptors])
    sock.sendmsg([packet], [(SOL_SOCKET, _socket.SCM_RIGHTS, rights)] if rights else [])


if __name__ == "__main__":
    serve(_socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, 0))
