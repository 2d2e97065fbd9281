"""Build the command line of `git clone`, and find the directory that it makes."""

from dataclasses import dataclass

from cove.core.git_command import ENVIRONMENT, GitCommand, check_line, credentials, split_credentials
from cove.errors import ValidationFailed


@dataclass(frozen=True, slots=True)
class Clone:
    """The command to run, and where the clone shall be, as the caller said it; the command's last word is the place."""

    command: GitCommand
    path: str


def plan_clone(url: str, path: str | None, *, branch: str | None, depth: int | None, token: str | None) -> Clone:
    """Check the arguments; raises ValidationFailed before anything has run."""
    for name, value in (("url", url), ("path", path), ("branch", branch)):
        if value is not None:
            check_line(name, value)
    if depth is not None and (isinstance(depth, bool) or not isinstance(depth, int) or depth < 1):
        raise ValidationFailed(f"depth must be a number of commits, 1 or more, not {depth!r}")
    clean, _, _ = split_credentials(check_line("url", url))
    words = ["git", "clone", "--quiet"]
    words += [] if branch is None else ["--branch", branch]
    words += [] if depth is None else ["--depth", str(depth)]
    target = path or default_path(clean)
    env, secrets = credentials(url, token)
    argv = (*words, "--", clean, target)
    return Clone(GitCommand(argv, f"cloning {clean}", {**ENVIRONMENT, **env}, secrets), target)


def default_path(url: str) -> str:
    """The directory that git would choose."""
    name = url.rstrip("/").removesuffix("/.git").rpartition("/")[2].rpartition(":")[2].removesuffix(".git")
    if not name or name in (".", ".."):
        raise ValidationFailed(f"no directory can be named after {url}: give a path")
    return name
