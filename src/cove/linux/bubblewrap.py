"""Find bubblewrap, its version, and whether the kernel lets it work."""

import re
import shutil
import subprocess
from pathlib import Path

OLDEST = (0, 8)
_SWITCHES = Path("/proc/sys")
_APPARMOR_SWITCH = "kernel/apparmor_restrict_unprivileged_userns"
_NAMESPACE_SWITCHES = (
    ("kernel/unprivileged_userns_clone", "kernel.unprivileged_userns_clone=1"),
    ("user/max_user_namespaces", "user.max_user_namespaces=65536"),
)
# Where Ubuntu 24.04 has the profile; later versions have it loaded.
_PROFILE = "bwrap-userns-restrict"
_EXTRA_PROFILES = "/usr/share/apparmor/extra-profiles"


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


def explain_refusal(output: str, switches: Path = _SWITCHES) -> str:
    """Explain why the kernel refused namespaces, and what to do."""
    if _read(switches / _APPARMOR_SWITCH) == "1":
        return (
            "Ubuntu's AppArmor rule forbids user namespaces to programs without a profile. Install the one for bwrap: "
            f"`sudo apt install apparmor-profiles && sudo install -m 644 {_EXTRA_PROFILES}/{_PROFILE} /etc/apparmor.d/ "
            f"&& sudo apparmor_parser -r /etc/apparmor.d/{_PROFILE}`; or allow them to all programs: "
            "`sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`."
        )
    for switch, setting in _NAMESPACE_SWITCHES:
        if _read(switches / switch) == "0":
            return f"User namespaces are switched off on this machine: `sudo sysctl -w {setting}`."
    return output.strip()[-500:] or "bwrap gave no reason"


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
