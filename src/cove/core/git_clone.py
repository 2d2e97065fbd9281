"""A clone as a command line, its credentials apart from it, and what git's complaints mean."""

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from cove.core.command import encode_text
from cove.errors import (
    CoveError,
    FileExists,
    GitAuthFailed,
    GitBranchNotFound,
    GitFailed,
    GitNetworkError,
    GitNotFound,
    GitTimeout,
    ValidationFailed,
)

# Any name will do beside a token: the large hosts ask for one and do not look at it.
_DEFAULT_USER = "x-access-token"
_HELPER = '!f() { test "$1" = get && printf "username=%s\\npassword=%s\\n" "$COVE_GIT_USER" "$COVE_GIT_TOKEN"; }; f'
_MEANINGS: tuple[tuple[type[CoveError], str], ...] = (
    (FileExists, r"already exists and is not an empty directory"),
    (GitBranchNotFound, r"Remote branch .* not found|Could not find remote branch"),
    (
        GitAuthFailed,
        r"Authentication failed|could not read (Username|Password)|Permission denied \(publickey|"
        r"error: (401|403)|HTTP Basic: Access denied|Invalid credentials|Host key verification failed",
    ),
    (
        GitNetworkError,
        r"Could not resolve host|Failed to connect|Connection (refused|timed out|reset)|Couldn't connect|"
        r"unable to connect|Network is unreachable|Operation timed out|SSL|server certificate|Empty reply|"
        r"No route to host|Temporary failure in name resolution",
    ),
    (
        GitNotFound,
        r"[Rr]epository .*not found|does not exist|not appear to be a git repository|"
        r"error: 404|repository not exported|No such file or directory",
    ),
)


@dataclass(frozen=True, slots=True)
class Clone:
    """What to run. `secrets` are what must not be seen in anything that is said about it."""

    argv: tuple[str, ...]
    env: dict[str, str]
    secrets: tuple[str, ...]
    url: str
    path: str
    branch: str | None

    def hide(self, text: str) -> str:
        """The text without secrets."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text


def plan_clone(url: str, path: str | None, *, branch: str | None, depth: int | None, token: str | None) -> Clone:
    """Check the arguments; raises ValidationFailed before anything has run."""
    for name, value in (("url", url), ("path", path), ("branch", branch), ("token", token)):
        if value is not None and (not encode_text(value, name) or any(letter in value for letter in "\r\n")):
            raise ValidationFailed(f"{name} must be one line of text, not empty")
    if depth is not None and (isinstance(depth, bool) or not isinstance(depth, int) or depth < 1):
        raise ValidationFailed(f"depth must be a number of commits, 1 or more, not {depth!r}")
    clean, user, password = split_credentials(url)
    secret = token or password
    words = ["git", "clone", "--quiet"]
    words += [] if branch is None else ["--branch", branch]
    words += [] if depth is None else ["--depth", str(depth)]
    target = path or default_path(clean)
    env = {"GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "", "SSH_ASKPASS": "", "LC_ALL": "C.UTF-8", "LANGUAGE": "C"}
    if secret is not None:
        env |= credential_environment(clean, user or _DEFAULT_USER, secret)
    secrets = () if secret is None else tuple(dict.fromkeys((secret, quote(secret, safe=""), quote(secret))))
    return Clone((*words, "--", clean, target), env, secrets, clean, target, branch)


def split_credentials(url: str) -> tuple[str, str | None, str | None]:
    """The URL without a password, and without the user that belongs to it."""
    if not re.match(r"https?://", url):
        return url, None, None
    parts = urlsplit(url)
    account, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, None, None
    user, _, password = account.partition(":")
    clean = urlunsplit(parts._replace(netloc=host))
    return clean, unquote(user) or None, unquote(password) or None


def credential_environment(url: str, user: str, secret: str) -> dict[str, str]:
    """For one process: a helper that answers for the URL's own host only. git-config(1), gitcredentials(7)."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        raise ValidationFailed("a token can be used with http and https URLs only")
    return {
        "GIT_CONFIG_COUNT": "2",
        "GIT_CONFIG_KEY_0": "credential.helper",
        "GIT_CONFIG_VALUE_0": "",
        "GIT_CONFIG_KEY_1": f"credential.{parts.scheme}://{parts.netloc}.helper",
        "GIT_CONFIG_VALUE_1": _HELPER,
        "COVE_GIT_USER": user,
        "COVE_GIT_TOKEN": secret,
    }


def default_path(url: str) -> str:
    """The directory that git would choose."""
    name = url.rstrip("/").removesuffix("/.git").rpartition("/")[2].rpartition(":")[2].removesuffix(".git")
    if not name or name in (".", ".."):
        raise ValidationFailed(f"no directory can be named after {url}: give a path")
    return name


def explain_failure(clone: Clone, complaint: str, *, timed_out: bool) -> CoveError:
    """The error for what git said, without secrets."""
    said = clone.hide(complaint).strip()[-2000:]
    if timed_out:
        return GitTimeout(f"cloning {clone.url} took too long", url=clone.url)
    for kind, expression in _MEANINGS:
        if re.search(expression, said):
            return kind(f"cloning {clone.url}: {said}", url=clone.url)
    return GitFailed(f"cloning {clone.url}: {said}", url=clone.url)
