"""Errors of file operations."""

from cove.errors.families import RequestError


class FileError(RequestError):
    """A file operation failed as it would have inside the sandbox."""


class FileNotFound(FileError):
    """There is no such file."""

    code = "FILE_NOT_FOUND"


class FileExists(FileError):
    """The file is already there."""

    code = "FILE_EXISTS"


class IsDirectory(FileError):
    """A file was wanted, a directory is there."""

    code = "IS_DIRECTORY"


class NotDirectory(FileError):
    """A directory was wanted, something else is there."""

    code = "NOT_DIRECTORY"


class FileTooLarge(FileError):
    """The file is larger than allowed."""

    code = "FILE_TOO_LARGE"


class NoSpace(FileError):
    """The disk, or the sandbox's share of it, is full."""

    code = "NO_SPACE"
