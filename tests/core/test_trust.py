"""A program trusts the sandbox's bundle, whichever variable it looks at."""

import pytest

from cove.core.command import check_environment
from cove.core.trust import BUNDLE, HOST_BUNDLES, TRUST_VARIABLES

pytestmark = pytest.mark.pure


def test_every_variable_names_the_bundle_that_is_there() -> None:
    assert set(TRUST_VARIABLES.values()) == {BUNDLE}
    assert check_environment(TRUST_VARIABLES) == TRUST_VARIABLES


def test_the_certificates_of_the_host_are_looked_for_in_absolute_places_once_each() -> None:
    assert all(path.startswith("/etc/") for path in HOST_BUNDLES)
    assert len(set(HOST_BUNDLES)) == len(HOST_BUNDLES)
