import pytest

from cove.core.network_policy import Refused, judge_request
from cove.model.network import NetworkRule

pytestmark = pytest.mark.pure


def refused(rule: NetworkRule, method: str, path: str) -> str | None:
    verdict = judge_request(rule, "api.example", method, path)
    return None if verdict is None else verdict.reason


def test_without_methods_and_paths_every_request_passes() -> None:
    assert refused(NetworkRule("api.example"), "DELETE", "/any//thing") is None


def test_a_method_that_is_not_named_is_refused() -> None:
    rule = NetworkRule("api.example", methods=["GET", "HEAD"])
    assert refused(rule, "HEAD", "/") is None
    assert refused(rule, "POST", "/") == "POST api.example is not allowed"


@pytest.mark.parametrize("path", ["/v1/", "/v1/a", "/v1/a/b", "/health"])
def test_a_path_that_a_pattern_matches_passes(path: str) -> None:
    assert refused(NetworkRule("api.example", paths=["/v1/***", "/health"]), "GET", path) is None


@pytest.mark.parametrize("path", ["/v1", "/v2/a", "/healthy", "/", "/a/v1/"])
def test_any_other_path_is_refused(path: str) -> None:
    assert "is not allowed" in str(refused(NetworkRule("api.example", paths=["/v1/*", "/health"]), "GET", path))


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/../x", "/v1/./x", "/v1/..", "/v1//x", "/v1/%2e%2E/x", "/v1/%2fx", "/v1/%5cx", "/v1\\x"),
        *("/v1/a;b", "/v1/%00", "/v1/%252e"),
    ],
)
def test_a_path_that_can_mean_another_one_is_refused(path: str) -> None:
    assert "two ways" in str(refused(NetworkRule("api.example", paths=["/v1/*"]), "GET", path))


def test_a_refusal_says_what_would_allow_it() -> None:
    verdict = judge_request(NetworkRule("api.example", paths=["/a"]), "api.example", "GET", "/b")
    assert verdict == Refused("GET api.example/b is not allowed", "api.example with paths='/b'")
