"""Whether this machine can give sandboxes users that are real: ranges of root's, or slices of a plain user's own."""

import os

import pytest

from cove.core.users import FIRST_RANGE, RANGE_USERS, RANGES
from cove.linux.subordinate import find_subordinates
from cove.linux.user_map import can_map_users

HAS_RANGES = can_map_users(FIRST_RANGE, RANGES * RANGE_USERS)
HAS_SLICES = os.geteuid() != 0 and find_subordinates() is not None
CAN_MAP_USERS = HAS_RANGES or HAS_SLICES

needs_users = pytest.mark.skipif(not CAN_MAP_USERS, reason="needs root, or a plain user with subordinate users")
needs_ranges = pytest.mark.skipif(not HAS_RANGES, reason="needs root, who can map ranges of users")
needs_slices = pytest.mark.skipif(not HAS_SLICES, reason="needs a plain user with subordinate users")
needs_one_user = pytest.mark.skipif(CAN_MAP_USERS, reason="needs a machine that cannot map users")
