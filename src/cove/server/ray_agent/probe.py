"""Try whether Ray's head lets one in: `python -m cove.server.ray_agent.probe HOST:PORT` prints how it went.

The token is that of the environment, as for every program that uses Ray.
"""

import sys

import ray
from ray._raylet import GcsClient
from ray.exceptions import AuthenticationError

_SECONDS = 5.0


def main() -> str:
    """Return the outcome: let in, refused for its token, or nobody there."""
    try:
        GcsClient(address=sys.argv[1]).internal_kv_get(b"probe", b"cove", _SECONDS)
    except AuthenticationError:
        return "refused"
    except Exception as error:  # noqa: BLE001  # of many kinds, which all mean that there is no answer
        sys.stderr.write(f"{error}\n")
        return "unreachable"
    return "welcome"


if __name__ == "__main__":
    sys.stdout.write(f"{main()} {ray.__version__}\n")
