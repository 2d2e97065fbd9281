import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cove.core.network_policy import Refused, judge_headers, judge_request
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


METHOD_OVERRIDES = ("x-http-method-override", "X-HTTP-Method", "x_http_method_override", "X-Method_Override")
PATH_OVERRIDES = ("x-original-url", "X-Rewrite-URL", "x_original_url")


@pytest.mark.parametrize(
    ("rule", "names"),
    [
        (NetworkRule("api.example", methods=["GET"]), METHOD_OVERRIDES),
        (NetworkRule("api.example", paths=["/v1/*"]), PATH_OVERRIDES),
    ],
)
def test_a_header_that_says_another_method_or_path_is_refused_where_a_rule_has_them(
    rule: NetworkRule, names: tuple[str, ...]
) -> None:
    for name in (*METHOD_OVERRIDES, *PATH_OVERRIDES):
        verdict = judge_headers(rule, "api.example", ["accept", name])
        assert (verdict is not None) == (name in names)
        assert verdict is None or f"the header {name}" in verdict.reason
        assert judge_headers(NetworkRule("api.example"), "api.example", [name]) is None
    assert judge_headers(rule, "api.example", ["accept", "x-http-methods"]) is None


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


@pytest.mark.parametrize(
    ("path", "passes"),
    [("/a/b/c", True), ("/a/bbc", True), ("/a/c", False), ("/a/b/", False), ("/b/b/c", False), ("/a/bc", True)],
)
def test_what_stands_between_two_stars_is_found_in_the_path(path: str, passes: bool) -> None:
    assert (refused(NetworkRule("api.example", paths=["/a/*b*c"]), "GET", path) is None) == passes


@given(st.lists(st.sampled_from(["*", "a", "b", "/", "ab"]), max_size=8), st.text("ab/", max_size=10))
def test_a_star_stands_for_any_text(pattern: list[str], path: str) -> None:
    path = "/" + re.sub("/+", "/", path).strip("/")
    rule = NetworkRule("api.example", paths=["/" + "".join(pattern)])
    expression = re.escape("/" + "".join(pattern)).replace(r"\*", ".*")
    assert (refused(rule, "GET", path) is None) == bool(re.fullmatch(expression, path))


def test_no_path_takes_long() -> None:
    rule = NetworkRule("api.example", paths=["/" + "*a" * 50 + "*b"])
    began = time.thread_time()
    assert refused(rule, "GET", "/" + "a" * 8000) is not None
    assert time.thread_time() - began < 0.1
