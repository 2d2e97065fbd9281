"""The bare shell: what a command costs without Cove.

It runs with the environment that a sandbox gives, because that changes what bash does at its start: a locale to
load, or the password database to ask when SHELL is not set.
"""

import subprocess

from cove.core.jail import BUILT_IN_ENV

ENVIRONMENT = dict(BUILT_IN_ENV)
NAME = "subprocess.run bash -c"


def run_shell(command: str = "true") -> None:
    """Run one command and wait for it, with the streams of this process."""
    subprocess.run(["bash", "-c", command], check=True, env=ENVIRONMENT)


def run_shell_captured(command: str) -> bytes:
    """Run one command and give what it printed."""
    return subprocess.run(["bash", "-c", command], check=True, env=ENVIRONMENT, capture_output=True).stdout


def start_shell(command: str) -> subprocess.Popen[bytes]:
    """Start one command whose output can be read."""
    return subprocess.Popen(["bash", "-c", command], env=ENVIRONMENT, stdout=subprocess.PIPE, bufsize=0)
