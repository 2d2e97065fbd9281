"""Find bubblewrap, its version, and whether the kernel lets it work."""

import re
import shutil
import subprocess
from pathlib import Path

OLDEST = (0, 8)
_APPARMOR_SWITCH = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
_NAMESPACE_SWITCHES = (
    (Path("/proc/sys/kernel/unprivileged_userns_clone"), "kernel.unprivileged_userns_clone=1"),
    (Path("/proc/sys/user/max_user_namespaces"), "user.max_user_namespaces=65536"),
)


def find_bubblewrap() -> str | None:
    """Return the path of bwrap, looked for in the system's own directories first."""
    return shutil.which("bwrap", path="/usr/bin:/bin:/usr/local/bin") or shutil.which("bwrap")


def bubblewrap_version(path: str) -> tuple[int, ...] | None:
    """Return its version, or None when it does not say."""
    try:
        text = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"(\d+)\.(\d+)", text)
    return None if found is None else (int(found[1]), int(found[2]))


def explain_refusal(output: str) -> str:
    """Explain why the kernel refused namespaces, and what to do."""
    if _read(_APPARMOR_SWITCH) == "1":
        return (
            "Ubuntu's AppArmor rule forbids user namespaces to programs without a profile. Install the profile for "
            "bwrap (package apparmor-profiles: /etc/apparmor.d/bwrap-userns-restrict), or allow them with "
            "`sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`."
        )
    for switch, setting in _NAMESPACE_SWITCHES:
        if _read(switch) == "0":
            return f"User namespaces are switched off on this machine: `sudo sysctl -w {setting}`."
    return output.strip()[-500:] or "bwrap gave no reason"


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
