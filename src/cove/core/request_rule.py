"""Judge a single HTTP request by the rule of its host: method, path, and what could mean another path upstream."""

import re
from collections.abc import Sequence
from functools import lru_cache

from cove.core.network_policy import Refused
from cove.model.network import NetworkRule

# Texts that servers decode or drop before they look for a path: with a rule on paths, nobody could judge it.
_AMBIGUOUS = re.compile(r"//|/\.{1,2}(/|$|;)|\\|%2e|%2f|%5c|%00|%25|;", re.IGNORECASE)


def judge_request(rule: NetworkRule, host: str, method: str, path: str) -> Refused | None:
    """Return why the request is refused, or None. `path` has no query."""
    if rule.methods and method not in rule.methods:
        return Refused(f"{method} {host} is not allowed", f"{rule.host} with methods={method!r}")
    if not rule.paths:
        return None
    if _AMBIGUOUS.search(path):
        return Refused(f"the path of {method} {host}{path} can be understood in two ways")
    if not any(pattern.fullmatch(path) for pattern in _patterns(tuple(rule.paths))):
        return Refused(f"{method} {host}{path} is not allowed", f"{rule.host} with paths={path!r}")
    return None


@lru_cache(maxsize=256)
def _patterns(paths: Sequence[str]) -> tuple[re.Pattern[str], ...]:
    """`*` is anything, slashes too. Repeated ones are one, so that no pattern takes long."""
    texts = (re.sub(r"\*+", "*", path) for path in paths)
    return tuple(re.compile("[^?]*".join(map(re.escape, text.split("*")))) for text in texts)
