"""Errors of git operations."""

from cove.errors.families import RequestError


class GitError(RequestError):
    """A command of git failed. What a clone had begun is removed."""


class GitNotFound(GitError):
    """There is no such repository, or it is not visible to this caller."""

    code = "GIT_NOT_FOUND"


class GitBranchNotFound(GitError):
    """The repository has no such branch, tag or commit."""

    code = "GIT_BRANCH_NOT_FOUND"


class GitBranchExists(GitError):
    """The repository has a branch of this name."""

    code = "GIT_BRANCH_EXISTS"


class GitConflict(GitError):
    """Changes contradict each other, or would be lost; the repository is as git left it."""

    code = "GIT_CONFLICT"


class GitRejected(GitError):
    """The remote did not take what was pushed: it has commits that are not here, or a rule of its own."""

    code = "GIT_REJECTED"


class GitNothingToCommit(GitError):
    """Nothing is staged."""

    code = "GIT_NOTHING_TO_COMMIT"


class GitAuthFailed(GitError):
    """The credentials are missing, or not accepted."""

    code = "GIT_AUTH_FAILED"


class GitNetworkError(GitError):
    """The server could not be reached from inside the sandbox."""

    code = "GIT_NETWORK_ERROR"


class GitTimeout(GitError):
    """It took too long, and was ended."""

    code = "GIT_TIMEOUT"


class GitFailed(GitError):
    """Git failed for another reason, which the message has."""

    code = "GIT_FAILED"
