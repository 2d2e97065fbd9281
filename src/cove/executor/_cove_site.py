"""Put the user's own packages, below HOME, before those of the environment when its Python starts.

The environment is read-only and shared by all sandboxes. pip installs for the user there, as it does for the
system's Python: outside a virtual environment it also replaces and removes what it has installed for the user.
"""

import os
import site
import sys

# Options that say on the command line where to install.
PLACES = ("-t", "--target", "--prefix", "--root", "--no-user")


def arrange() -> None:
    """Arrange the path. Called from the .pth file that lies beside this one; idempotent."""
    if sys.flags.no_user_site:
        return
    site.ENABLE_USER_SITE = True
    path = site.getusersitepackages()
    if os.path.isdir(path) and path not in sys.path:
        known = list(sys.path)
        site.addsitedir(path)
        own = os.path.dirname(os.path.abspath(__file__))
        at = known.index(own) if own in known else len(known)
        sys.path[:] = known[:at] + sys.path[len(known) :] + known[at:]
    if is_pip(sys.orig_argv[1:]):
        sys.base_prefix, sys.base_exec_prefix = sys.prefix, sys.exec_prefix
        os.environ.setdefault("PIP_BREAK_SYSTEM_PACKAGES", "1")
        os.environ.setdefault("PIP_ROOT_USER_ACTION", "ignore")
        if "install" in sys.orig_argv and not any(word.startswith(PLACES) for word in sys.orig_argv):
            os.environ.setdefault("PIP_USER", "1")


def is_pip(words: list[str]) -> bool:
    """Return whether these are the arguments of `python -m pip` or of a script called pip."""
    return words[:2] == ["-m", "pip"] or (bool(words) and os.path.basename(words[0]).startswith("pip"))
