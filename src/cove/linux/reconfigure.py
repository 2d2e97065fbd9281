"""Set limits on a jail's mounts and user namespace from outside, which bubblewrap has no options for.

Root imports it: fspick(2) reaches the mounts of any namespace. A plain user, who owns the jail's namespaces but may not
reach into them from outside, runs it as a program that enters them first. It then starts nothing and reads nothing
that lies inside, and ends. Standard library only, and as little of it as possible: every start of a jail waits for it.
"""

import _ctypes
import _socket
import posix
import sys

# Numbers that all ABIs share.
FSCONFIG = 431
FSPICK = 433

AT_CURRENT_DIRECTORY = -100
FSPICK_CLOEXEC = 1
FSPICK_SYMLINK_NOFOLLOW = 2
FSCONFIG_SET_STRING = 1
FSCONFIG_CMD_RECONFIGURE = 7

DONE = b"done"
_DESCRIPTOR_BYTES = 4

_library = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]  # the program itself
_syscall = _ctypes.dlsym(_library, "syscall")
_setns = _ctypes.dlsym(_library, "setns")


def reconfigure(path: str, options: str) -> None:
    """Set options of the file system that is mounted there, `name=value` with commas between. Keeps all others."""
    context = _call(
        path, _syscall, FSPICK, AT_CURRENT_DIRECTORY, path.encode(), FSPICK_CLOEXEC | FSPICK_SYMLINK_NOFOLLOW
    )
    try:
        for option in options.split(","):
            name, _, value = option.partition("=")
            _call(path, _syscall, FSCONFIG, context, FSCONFIG_SET_STRING, name.encode(), value.encode(), 0)
        _call(path, _syscall, FSCONFIG, context, FSCONFIG_CMD_RECONFIGURE, None, None, 0)
    finally:
        posix.close(context)


def _call(subject: str, function: int, *arguments: object) -> int:
    result: int = _ctypes.call_function(function, arguments)
    if result < 0:
        raise OSError(f"{subject} cannot be reconfigured")
    return result


def _write(path: str, value: str) -> None:
    """A sysctl below /proc/sys/user is that of the user namespace of who opens it: namespaces(7)."""
    descriptor = posix.open(path, posix.O_WRONLY)
    posix.write(descriptor, value.encode())
    posix.close(descriptor)


def _receive(sock: _socket.socket) -> tuple[int, int]:
    """Wait for the two namespaces: of the user, of the mounts."""
    _, ancillary, _, _ = sock.recvmsg(1, _socket.CMSG_SPACE(2 * _DESCRIPTOR_BYTES))
    data = ancillary[0][2]
    user, mounts = (int.from_bytes(data[at : at + _DESCRIPTOR_BYTES], sys.byteorder) for at in (0, _DESCRIPTOR_BYTES))
    return user, mounts


def main() -> None:
    """Set `PATH=VALUE` of sysctls and `MOUNT:OPTIONS` of mounts, in the namespaces that come by the standard input."""
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, 0)
    try:
        user, mounts = _receive(sock)
        _call("the user namespace", _setns, user, 0)
        for word in sys.argv[1:]:
            if word.startswith("/proc/sys/"):
                _write(*word.split("=", 1))
        # From here on the jail's own files are seen.
        _call("the mount namespace", _setns, mounts, 0)
        for word in sys.argv[1:]:
            if not word.startswith("/proc/sys/"):
                reconfigure(*word.split(":", 1))
        sock.send(DONE)
    except (OSError, IndexError) as error:
        sock.send(str(error).encode()[:1000] or b"no reason")


if __name__ == "__main__":
    main()
