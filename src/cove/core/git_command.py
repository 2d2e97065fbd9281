"""Build Git's command lines, pass credentials apart from them, and map Git's messages to errors."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from cove.core.command import encode_text
from cove.errors import (
    CoveError,
    FileExists,
    FileNotFound,
    GitAuthFailed,
    GitBranchExists,
    GitBranchNotFound,
    GitConflict,
    GitFailed,
    GitNetworkError,
    GitNotFound,
    GitNothingToCommit,
    GitRejected,
    GitTimeout,
    NotDirectory,
    ValidationFailed,
)

# Any name will do beside a token: the large hosts ask for one and do not look at it.
_DEFAULT_USER = "x-access-token"
_HELPER = '!f() { test "$1" = get && printf "username=%s\\npassword=%s\\n" "$COVE_GIT_USER" "$COVE_GIT_TOKEN"; }; f'
_AUTHOR = re.compile(r"([^<>\r\n]*[^<>\s]) <([^<>\s]+)>")
# git-check-ref-format(1): what no name of a branch has.
_NO_BRANCH = re.compile(r"^[-+/.]|[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|/\.|\.lock(/|$)|[/.]$|^@$|^HEAD$")
_KEPT_COMPLAINT = 2000
# Bounded, as the gaps in the expressions are: what is judged is untrusted.
_JUDGED_COMPLAINT = 8000
# Nothing asks, shows pages or opens an editor; paths are names, not patterns; messages are in English.
ENVIRONMENT: Mapping[str, str] = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "",
    "SSH_ASKPASS": "",
    "GIT_EDITOR": ":",
    "GIT_PAGER": "cat",
    "GIT_LITERAL_PATHSPECS": "1",
    "LC_ALL": "C.UTF-8",
    "LANGUAGE": "C",
}
_MEANINGS: tuple[tuple[type[CoveError], str], ...] = (
    (FileExists, r"already exists and is not an empty directory"),
    (FileNotFound, r"cannot change to '.{0,400}': No such file|pathspec '.{0,400}' did not match any files"),
    (NotDirectory, r"cannot change to '.{0,400}': Not a directory"),
    (GitBranchExists, r"branch named '.{0,400}' already exists"),
    (
        GitBranchNotFound,
        r"Remote branch .{0,400} not found|Could not find remote branch|invalid reference|couldn't find remote ref|"
        r"src refspec .{0,400} does not match|[Nn]ot a valid object name|branch '.{0,400}' not found|"
        r"ambiguous argument|bad revision",
    ),
    (GitNothingToCommit, r"nothing to commit|nothing added to commit|no changes added to commit"),
    (
        GitConflict,
        r"^CONFLICT|Automatic merge failed|would be overwritten by|resolve your current index|unmerged files|"
        r"not concluded your merge|is not fully merged|cannot pull with rebase|could not apply",
    ),
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
    (GitRejected, r"\[(remote )?rejected\]|failed to push some refs"),
    (
        GitNotFound,
        r"[Rr]epository .{0,400}not found|does not exist|not appear to be a git repository|[Nn]ot a git repository|"
        r"error: 404|repository not exported|No such file or directory",
    ),
)


@dataclass(frozen=True, slots=True)
class GitCommand:
    """The command to run. `subject` names it in errors; `secrets` are redacted from anything that is said of it."""

    argv: tuple[str, ...]
    subject: str
    env: dict[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    stdin: bytes | None = None

    def hide(self, text: str) -> str:
        """Return the text without secrets."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text


def plan_status(where: str) -> GitCommand:
    """Tell what differs, as records that end with NUL: git-status(1), porcelain format version 2."""
    return _in(where, "status", "--porcelain=v2", "--branch", "-z", "--untracked-files=normal", env=_READ_ONLY)


def plan_diff(where: str, base: str | None, paths: Sequence[str], *, staged: bool) -> GitCommand:
    """Compare files with the index, the index with a commit (`staged`), or files with a commit (`base`)."""
    words = ["diff", "--no-color", "--no-ext-diff", "--no-textconv"]
    words += ["--staged"] if staged else []
    words += [] if base is None else [_check_revision("base", base)]
    return _in(where, *words, "--", *_check_paths(paths), env=_READ_ONLY)


def plan_add(where: str, paths: Sequence[str] | None) -> GitCommand:
    """Stage paths, or everything: git-add(1). Paths travel in standard input, however many they are."""
    if paths is None:
        return _in(where, "add", "--all")
    named = b"".join(encode_text(path, "path") + b"\0" for path in _check_paths(paths))
    if not named:
        raise ValidationFailed("paths is empty: leave it out to add everything")
    return _in(where, "add", "--pathspec-from-file=-", "--pathspec-file-nul", stdin=named)


def plan_commit(where: str, message: str, *, everything: bool, allow_empty: bool, author: str | None) -> GitCommand:
    """Record what is staged; the message travels in standard input."""
    text = encode_text(message, "message")
    if not text.strip():
        raise ValidationFailed("message is empty")
    words = [*(["--all"] if everything else []), *(["--allow-empty"] if allow_empty else [])]
    return _in(where, "commit", "--quiet", "--file=-", *words, env=_identity(author), stdin=text)


def plan_push(
    where: str,
    remote: str,
    branch: str | None,
    *,
    force: bool,
    set_upstream: bool,
    token: str | None,
    url: str | None,
) -> GitCommand:
    """Send a branch, or the one that is checked out, to the branch of the same name."""
    clean, env, secrets = _remote_credentials(remote, token, url)
    refs = "HEAD" if branch is None else "refs/heads/{0}:refs/heads/{0}".format(check_branch(branch))
    words = [*(["--force"] if force else []), *(["--set-upstream"] if set_upstream else [])]
    return _in(where, "push", "--quiet", *words, "--", clean, refs, env=env, secrets=secrets)


def plan_pull(
    where: str, remote: str | None, branch: str | None, *, rebase: bool, token: str | None, url: str | None
) -> GitCommand:
    """Fetch and merge, or rebase on, the branch that this one follows, or the one that is named."""
    if remote is None and branch is not None:
        raise ValidationFailed("a branch is pulled from somewhere: name the remote too")
    clean, env, secrets = _remote_credentials(remote, token, url)
    source = [word for word in (clean, branch and check_branch(branch)) if word]
    words = ["pull", "--quiet", "--no-edit", "--rebase" if rebase else "--no-rebase", "--", *source]
    return _in(where, *words, env=env, secrets=secrets)


def plan_branches(where: str) -> GitCommand:
    """List branches, a line for each, its fields apart by NUL: git-for-each-ref(1)."""
    fields = "%00".join(("%(HEAD)", "%(refname)", "%(objectname)", "%(upstream:short)"))
    return _in(where, "for-each-ref", f"--format={fields}", "refs/heads", env=_READ_ONLY)


def plan_branch(where: str, name: str, start: str | None, *, delete: bool, force: bool) -> GitCommand:
    """Make or remove a branch."""
    if delete and start is not None:
        raise ValidationFailed("a branch that is deleted has no start")
    words = [*(["--delete"] if delete else []), *(["--force"] if force else [])]
    at = [] if start is None else [_check_revision("start", start)]
    return _in(where, "branch", "--quiet", *words, check_branch(name), *at)


def plan_checkout(where: str, ref: str, *, create: bool, force: bool) -> GitCommand:
    """Switch to a branch, a tag or a commit; never to a file of that name."""
    words = ["checkout", "--quiet", *(["--force"] if force else [])]
    if create:
        return _in(where, *words, "-b", check_branch(ref))
    return _in(where, *words, _check_revision("ref", ref), "--")


def plan_commit_name(where: str) -> GitCommand:
    """Print the commit that is checked out; nothing where there is none."""
    return _in(where, "rev-parse", "--verify", "--quiet", "HEAD")


def plan_branch_name(where: str) -> GitCommand:
    """Print the branch that is checked out; nothing where HEAD is detached."""
    return _in(where, "symbolic-ref", "--short", "--quiet", "HEAD")


_READ_ONLY = {"GIT_OPTIONAL_LOCKS": "0"}


def _in(
    where: str,
    *words: str,
    env: Mapping[str, str] | None = None,
    secrets: tuple[str, ...] = (),
    stdin: bytes | None = None,
) -> GitCommand:
    merged = {**ENVIRONMENT, **(env or {})}
    return GitCommand(("git", "-C", where, *words), f"git {words[0]} in {where}", merged, secrets, stdin)


def check_line(name: str, value: str) -> str:
    """Return a text of one line that is not empty, or raise ValidationFailed."""
    if not encode_text(value, name) or any(letter in value for letter in "\r\n"):
        raise ValidationFailed(f"{name} must be one line of text, not empty")
    return value


def check_branch(name: str) -> str:
    """Return the name of a branch, or raise ValidationFailed."""
    if _NO_BRANCH.search(check_line("branch", name)):
        raise ValidationFailed(f"{name!r} cannot be the name of a branch: see git-check-ref-format(1)")
    return name


def _check_revision(name: str, value: str) -> str:
    if check_line(name, value).startswith("-"):
        raise ValidationFailed(f"{name} must be a branch, a tag or a commit, not {value!r}")
    return value


def _check_paths(paths: Sequence[str]) -> Sequence[str]:
    if isinstance(paths, str) or not isinstance(paths, Sequence):
        raise ValidationFailed("paths must be a list of strings")
    for path in paths:
        if not encode_text(path, "path"):
            raise ValidationFailed("a path is empty: `.` is the directory itself")
    return paths


def _identity(author: str | None) -> dict[str, str]:
    if author is None:
        return {}
    found = _AUTHOR.fullmatch(check_line("author", author))
    if found is None:
        raise ValidationFailed(f"author must look like `Name <name@example.com>`, not {author!r}")
    who = {"NAME": found[1], "EMAIL": found[2]}
    return {f"GIT_{role}_{name}": value for role in ("AUTHOR", "COMMITTER") for name, value in who.items()}


def _remote_credentials(
    remote: str | None, token: str | None, url: str | None
) -> tuple[str, dict[str, str], tuple[str, ...]]:
    """Return the URL, the environment that opens the door there, and what of it is secret.

    The name of a remote stands for what the repository's configuration says, which code inside can change: a token is
    for the host of a URL that the caller names.
    """
    clean, _, password = split_credentials(check_line("remote", remote)) if remote else ("", None, None)
    if clean.startswith("-"):
        raise ValidationFailed(f"remote must be a name or a URL, not {remote!r}")
    place = url or (remote if remote and (password or "://" in clean) else None)
    if place is None and token is not None:
        raise ValidationFailed("a token is given to one host only: name the repository's URL with url=")
    env, secrets = ({}, ()) if place is None else credentials(check_line("url", place), token)
    return clean, env, secrets


def credentials(url: str, token: str | None) -> tuple[dict[str, str], tuple[str, ...]]:
    """Make the environment in which git has the token, or the URL's own password, for its host; and the secrets."""
    if token is not None:
        check_line("token", token)
    clean, user, password = split_credentials(url)
    secret = token or password
    if secret is None:
        return {}, ()
    secrets = tuple(dict.fromkeys((secret, quote(secret, safe=""), quote(secret))))
    return _credential_environment(clean, user or _DEFAULT_USER, secret), secrets


def split_credentials(url: str) -> tuple[str, str | None, str | None]:
    """Return the URL without a password, and without the user that belongs to it."""
    if not re.match(r"https?://", url):
        return url, None, None
    parts = urlsplit(url)
    account, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, None, None
    user, _, password = account.partition(":")
    clean = urlunsplit(parts._replace(netloc=host))
    return clean, unquote(user) or None, unquote(password) or None


def _credential_environment(url: str, user: str, secret: str) -> dict[str, str]:
    """For one process: a helper that answers for the URL's own host only, and no hooks, which would inherit it.

    git-config(1), gitcredentials(7): a helper without a name forgets those that were configured before.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        raise ValidationFailed("a token can be used with http and https URLs only")
    settings = {
        "credential.helper": "",
        f"credential.{parts.scheme}://{parts.netloc}.helper": _HELPER,
        "core.hooksPath": "/dev/null",
    }
    env = {"GIT_CONFIG_COUNT": str(len(settings)), "COVE_GIT_USER": user, "COVE_GIT_TOKEN": secret}
    for number, (name, value) in enumerate(settings.items()):
        env |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    return env


def explain_failure(command: GitCommand, complaint: str, *, timed_out: bool) -> CoveError:
    """Return the error for what git said, without secrets."""
    if timed_out:
        return GitTimeout(f"{command.subject} took too long")
    said = command.hide(complaint).strip()
    judged = _shorten(said, _JUDGED_COMPLAINT)
    for kind, expression in _MEANINGS:
        if re.search(expression, judged, re.MULTILINE):
            return kind(f"{command.subject}: {_shorten(said, _KEPT_COMPLAINT)}")
    return GitFailed(f"{command.subject}: {_shorten(said, _KEPT_COMPLAINT)}")


def _shorten(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most // 2]}\n…\n{text[-most // 2 :]}"


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
    """Return the directory that git would choose."""
    name = url.rstrip("/").removesuffix("/.git").rpartition("/")[2].rpartition(":")[2].removesuffix(".git")
    if not name or name in (".", ".."):
        raise ValidationFailed(f"no directory can be named after {url}: give a path")
    return name
