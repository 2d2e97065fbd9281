"""Perform the steps of attach/actions in the namespaces of a jail."""

import _signal
import _socket
import errno
import posix
import stat
import sys

from cove.attach import kernel
from cove.attach.workbench import Workbench

SETTINGS = b"/proc/sys"
# Where a new root stands for a moment: a directory that every jail has.
ROOT_STAND = "/tmp"
CAPABILITY_VERSION = 0x20080522
FILE_CAPABILITIES = (0, 1, 2, 3, 4)  # chown, all of DAC, what owners may, set-id bits: capabilities(7)
NETLINK_ROUTE = 0
NETLINK_NETFILTER = 12


class Performer:
    """Performs steps in order.

    `trees` are the detached mounts made so far; `clones`, which are such too, and `sockets` those to be given, which
    `given` has once they are.
    """

    def __init__(self) -> None:
        self.trees: list[int] = []
        self.workbench = Workbench()
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
            b"bench": self.workbench.make,
            b"layer": self.workbench.add,
            b"merge": self.workbench.merge,
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
            except kernel.Failed as failure:
                failure.at = at
                raise

    def perform(self, step: bytes, descriptors: list[int]) -> None:
        """Perform one step, whose descriptors are not closed. Raises Failed."""
        verb, *fields = step.split(b"\0")
        try:
            self.verbs[verb](fields, descriptors)
        except OSError as error:
            subject = b" ".join([verb, *fields[:1]]).decode("utf-8", "replace")
            raise kernel.Failed(error.errno or errno.EIO, subject) from None

    def close(self) -> None:
        """Close what was opened; sockets that were given live on where they went."""
        for tree in (*self.trees, *self.clones):
            posix.close(tree)
        self.workbench.close()
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
        kernel.call("itself", kernel.prctl, kernel.PR_SET_DUMPABLE, 0, 0, 0, 0)

    def enter_user(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Enter the user namespace that owns the others: its rights open them. For a process of one thread."""
        kernel.call("the jail's user namespace", kernel.setns, descriptors[0], kernel.CLONE_NEWUSER)

    def enter_mounts(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Enter the mount namespace. From here on paths are the jail's."""
        kernel.call("a directory of one's own", kernel.unshare, kernel.CLONE_FS)
        kernel.call("the jail's mount namespace", kernel.setns, descriptors[0], kernel.CLONE_NEWNS)

    def enter_network(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Enter the network namespace."""
        kernel.call("the jail's network namespace", kernel.setns, descriptors[0], kernel.CLONE_NEWNET)

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
        self.settings = posix.open(SETTINGS, kernel.PATH)

    def copy_tree(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Run a program that copies a directory of the host, with the rights over it that the user namespace gives.

        The program sees it by a mount that follows no link: code inside may change it meanwhile.
        """
        path, *arguments, state, target, source = fields
        is_still = state == b"still"
        kernel.enter_without_links(source.decode("utf-8", "surrogateescape"), descriptors[0], is_still=is_still)
        mask = sum([1 << each for each in FILE_CAPABILITIES]).to_bytes(4, sys.byteorder)
        header = CAPABILITY_VERSION.to_bytes(4, sys.byteorder) + bytes(4)
        kernel.call("rights", kernel.capset, header, mask * 3 + bytes(12))
        for number in FILE_CAPABILITIES:
            kernel.call("rights", kernel.prctl, kernel.PR_CAP_AMBIENT, kernel.PR_CAP_AMBIENT_RAISE, number, 0, 0)
        program = posix.posix_spawn(path, [*arguments, b".", target], {})
        if posix.waitpid(program, 0)[1]:
            raise kernel.Failed(errno.EIO, b" to ".join((source, target)).decode("utf-8", "replace"))

    def copy_mounts(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Have a copy of the host's mounts, where the jail's rights hold: only from there can a mount be cloned."""
        kernel.call("a copy of the mounts", kernel.unshare, kernel.CLONE_NEWNS)

    def clone_tree(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Clone the mount of a host's file, read-only. The descriptor says which file it has to be."""
        path = fields[0].decode("utf-8", "surrogateescape")
        tree = kernel.clone_source(path, descriptors[0])
        self.trees.append(tree)
        kernel.set_attributes(tree, path, kernel.MOUNT_ATTRIBUTES)

    def make_read_only(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Let nobody write by these mounts any more: EBUSY, and nothing has changed, while somebody has a file open."""
        done: list[int] = []
        try:
            for field in fields:
                path = field.decode("utf-8", "surrogateescape")
                place = kernel.open_path(path)
                try:
                    kernel.set_attributes(place, path, kernel.READ_ONLY)
                except kernel.Failed:
                    posix.close(place)
                    raise
                done.append(place)
        except kernel.Failed:
            for place in done:
                kernel.set_attributes(place, "a mount", 0, kernel.READ_ONLY)
            raise
        finally:
            for place in done:
                posix.close(place)

    def swap(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Put a part where another mount is, which goes; mounts below that one stay. For a jail that is frozen."""
        part, target, *below = fields
        path = target.decode("utf-8", "surrogateescape")
        kept = [(field.decode("utf-8", "surrogateescape"), kernel.clone_mounted(field)) for field in below]
        if path == "/":
            self._replace_root(self.workbench.parts[part], kept)
            return
        kernel.call(path, kernel.umount2, target, kernel.MNT_DETACH)
        self._put(self.workbench.parts[part], path, True)
        self._put_all(kept, "")

    def _replace_root(self, tree: int, kept: list[tuple[str, int]]) -> None:
        """Make a tree the root of everything in this mount namespace; the old one goes with all that is in it.

        Whoever has the old root, and stands there, has the new one from now on: pivot_root(2). The agent runs
        meanwhile, and finds its own files at any time: they are in the new root before that is the root.
        """
        self._put(tree, ROOT_STAND, True)
        self._put_all(kept, ROOT_STAND)
        posix.fchdir(tree)
        kernel.call("the root", kernel.pivot_root, b".", b".")
        kernel.call("the old root", kernel.umount2, b".", kernel.MNT_DETACH)
        posix.chdir("/")

    def _put_all(self, trees: list[tuple[str, int]], above: str) -> None:
        for place, tree in trees:
            self._put(tree, above + place, stat.S_ISDIR(posix.fstat(tree).st_mode))
            posix.close(tree)

    def _put(self, tree: int, target: str, is_directory: bool) -> None:
        place = kernel.open_or_make(target, is_directory)
        try:
            kernel.call(target, kernel.syscall, kernel.MOVE_MOUNT, tree, b"", place, b"", kernel.MOVE_MOUNT_EMPTY_PATHS)
        finally:
            posix.close(place)

    def place_tree(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Mount a tree on a file that is there; one that stands there already stays."""
        tree, target = self.trees[int(fields[0])], fields[1].decode("utf-8", "surrogateescape")
        try:
            place = kernel.open_path(target)
        except kernel.Failed as failure:
            if fields[2:] and failure.number in kernel.NO_FILE:
                return
            raise
        try:
            if stat.S_ISDIR(posix.fstat(place).st_mode):
                raise kernel.Failed(errno.EISDIR, target)
            if kernel.identify(place) != kernel.identify(tree):
                kernel.call(
                    target, kernel.syscall, kernel.MOVE_MOUNT, tree, b"", place, b"", kernel.MOVE_MOUNT_EMPTY_PATHS
                )
        finally:
            posix.close(place)

    def clone_directory(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Clone the mounts at a path, to be given. A descriptor says which file that has to be."""
        path = fields[1].decode("utf-8", "surrogateescape")
        found = kernel.open_path(path)
        try:
            if descriptors and kernel.identify(found) != kernel.identify(descriptors[0]):
                raise kernel.Failed(errno.ESTALE, path)
            self.clones.append(kernel.clone(found, path, read_only=fields[0] == b"ro"))
        finally:
            posix.close(found)

    def attach_tree(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Mount a tree that came from outside; its mount point is made where it is missing."""
        self._put(descriptors[0], fields[0].decode("utf-8", "surrogateescape"), fields[1] == b"directory")

    def open_names(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Hold the directory in which the host's procfs names our descriptors: umount2(2) takes names alone."""
        self.descriptors = posix.open("/proc/self/fd", kernel.PATH)

    def unmount(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Take away the mount with that root; ESTALE when another, or none, stands there. Who uses it keeps it.

        Asks nobody who serves it: that one may be dead. By its descriptor, as the host's procfs names it: code inside
        that swaps names meanwhile has nothing else unmounted.
        """
        target = fields[0].decode("utf-8", "surrogateescape")
        place = kernel.open_path(target)
        try:
            if not kernel.is_same_mount(kernel.identify_mount(place), fields[1]):
                raise kernel.Failed(errno.ESTALE, target)
            posix.fchdir(self.descriptors)
            kernel.call(target, kernel.umount2, b"%d" % place, kernel.MNT_DETACH)
        finally:
            posix.close(place)
            posix.chdir("/")

    def remove_directory(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Remove an empty directory that was made as a mount point. One that is used, or gone, is left alone."""
        parent, _, name = fields[0].decode("utf-8", "surrogateescape").rpartition("/")
        above = kernel.open_path(parent or "/")
        try:
            posix.rmdir(name, dir_fd=above)
        except OSError:
            return
        finally:
            posix.close(above)

    def isolate_user(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Enter a new user namespace, for others to map and to hold."""
        kernel.call("a user namespace", kernel.unshare, kernel.CLONE_NEWUSER)

    def bind(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Bind sources to targets, in pairs. By path: for a jail in which nothing runs yet."""
        for source, target in zip(fields[::2], fields[1::2], strict=True):
            kernel.call(
                target.decode("utf-8", "surrogateescape"), kernel.mount, source, target, None, kernel.MS_BIND, None
            )

    def seal(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Let nobody write below a directory; what is mounted there stays. By path: where nothing runs yet."""
        path = fields[0].decode("utf-8", "surrogateescape")
        kernel.call(path, kernel.mount, fields[0], fields[0], None, kernel.MS_BIND | kernel.MS_REC, None)
        place = kernel.open_path(path)
        try:
            kernel.set_attributes(place, path, kernel.MOUNT_ATTRIBUTES)
        finally:
            posix.close(place)

    def reconfigure(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Set options of a file system, `name=value` each; keeps all others. For a jail in which nothing runs yet."""
        path, *options = fields
        subject = path.decode("utf-8", "surrogateescape")
        context = kernel.call(
            subject, kernel.syscall, kernel.FSPICK, kernel.AT_CURRENT_DIRECTORY, path, kernel.FSPICK_FLAGS
        )
        try:
            for option in options:
                name, _, value = option.partition(b"=")
                kernel.call(
                    subject, kernel.syscall, kernel.FSCONFIG, context, kernel.FSCONFIG_SET_STRING, name, value, 0
                )
            kernel.call(
                subject, kernel.syscall, kernel.FSCONFIG, context, kernel.FSCONFIG_CMD_RECONFIGURE, None, None, 0
            )
        finally:
            posix.close(context)

    def move(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Move a mount; what it is decides whether its mount point is made as a directory or a file."""
        origin, target = (field.decode("utf-8", "surrogateescape") for field in fields)
        source = kernel.open_path(origin)
        try:
            self._put(source, target, stat.S_ISDIR(posix.fstat(source).st_mode))
        finally:
            posix.close(source)

    def detach(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Take a mount, and all below it, out of sight."""
        kernel.call(fields[0].decode(), kernel.umount2, fields[0], kernel.MNT_DETACH)

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
            raise kernel.Failed(error.errno or errno.EIO, str(port)) from None

    def listen(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Make every stream listen: a port that another socket listens on since is found out here."""
        for sock in self.sockets:
            if sock.type & 0xF == _socket.SOCK_STREAM:
                try:
                    sock.listen(int(fields[0]))
                except OSError as error:
                    raise kernel.Failed(error.errno or errno.EIO, str(sock.getsockname()[1])) from None

    def send_netlink(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Send one rtnetlink message, given in hexadecimal digits, and wait for its acknowledgement."""
        kernel.ask_netlink(NETLINK_ROUTE, fields[0], "the loopback interface")

    def lead(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Bind a socket and send the nf_tables transaction that leads connections to it: both, or neither."""
        rules, address, port = fields
        self.open_socket([b"stream", address, port], descriptors)
        try:
            kernel.ask_netlink(NETLINK_NETFILTER, rules, "nf_tables")
        except BaseException:
            self.sockets.pop().close()
            raise
