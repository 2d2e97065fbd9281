"""Whether this machine can give sandboxes users that are real."""

import pytest

from cove.core.users import FIRST_RANGE, RANGE_USERS, RANGES
from cove.linux.user_map import can_map_users

CAN_MAP_USERS = can_map_users(FIRST_RANGE, RANGES * RANGE_USERS)

needs_users = pytest.mark.skipif(not CAN_MAP_USERS, reason="needs root, who can map ranges of users")
needs_one_user = pytest.mark.skipif(CAN_MAP_USERS, reason="needs a machine that cannot map users: root can")
