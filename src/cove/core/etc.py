"""Choose the contents of /etc inside: names taken from the host's, and files of our own."""

import re
from collections.abc import Iterable, Mapping

from cove.core.jail import BUILT_IN_ENV, HOME, HOSTNAME, NAME_SERVER, USER, USER_ID

# Names in /etc that daily tools read and that say nothing about the host's people or secrets.
HOST_ETC = (
    "alternatives",
    "bash.bashrc",
    "ca-certificates",
    "ca-certificates.conf",
    "debian_version",
    "fonts",
    "inputrc",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "lsb-release",
    "magic",
    "mime.types",
    "os-release",
    "pki",
    "protocols",
    "python3",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
)
# Configurations that programs below /usr link to under a name with their version. Not all they link to:
# /etc/maven has the passwords of whoever configured it.
_VERSIONED_ETC = re.compile(r"java-[0-9]+-openjdk")


def choose_names(found: Iterable[str]) -> tuple[str, ...]:
    """Return what is shown of a host that has these names in /etc; of the others some may be missing there."""
    return (*HOST_ETC, *sorted(filter(_VERSIONED_ETC.fullmatch, found)))


# The last one is in the path of a bash that was given none.
_SYSTEM_DIRECTORIES = "|".join(
    (*(f"{base}/{name}" for base in ("", "/usr", "/usr/local") for name in ("bin", "sbin", "games")), ".")
)
_DEFAULTS = "\n".join(
    f'export {name}="${{{name}:-{value}}}"' for name, value in BUILT_IN_ENV.items() if name not in ("PATH", "TERM")
)
# A login shell has the environment that every command has. Distributions' own profiles set PATH anew.
_PROFILE = f"""\
_cove_path=
_cove_ifs=${{IFS-unset}}
IFS=:
for _cove_each in ${{PATH-}}; do
    case $_cove_each in
    {_SYSTEM_DIRECTORIES}) ;;
    *) _cove_path=$PATH ;;
    esac
done
if [ "$_cove_ifs" = unset ]; then unset IFS; else IFS=$_cove_ifs; fi
# A path of the system's directories alone was set by whoever started this shell anew, as su does.
export PATH="${{_cove_path:-{BUILT_IN_ENV["PATH"]}}}"
unset _cove_path _cove_ifs _cove_each
{_DEFAULTS}
if [ -n "${{PS1-}}" ] && [ -n "${{BASH-}}" ] && [ "$BASH" != /bin/sh ] && [ -f /etc/bash.bashrc ]; then
    . /etc/bash.bashrc
fi
"""

SYNTHETIC_ETC: Mapping[str, str] = {
    "passwd": f"root:x:0:0:root:/root:/usr/sbin/nologin\n"
    f"{USER}:x:{USER_ID}:{USER_ID}:{USER}:{HOME}:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": f"root:x:0:\n{USER}:x:{USER_ID}:\nnogroup:x:65534:\n",
    "hosts": f"127.0.0.1 localhost {HOSTNAME}\n::1 localhost ip6-localhost ip6-loopback\n",
    "hostname": f"{HOSTNAME}\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n",
    "machine-id": "c0fec0fec0fec0fec0fec0fec0fec0fe\n",
    "profile": _PROFILE,
    # The name server of a network policy; without one nothing listens there. With network="host" it is the host's.
    "resolv.conf": f"nameserver {NAME_SERVER}\n",
}
