"""Decide what a client of a server may mount: only its configuration grants these."""

import msgspec

from cove.errors import PermissionDenied
from cove.model import BucketMount, Secret


class BucketBinding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A bucket that clients of the bridge protocol know by a name alone."""

    url: str
    endpoint: str
    credentials: Secret | None = None
    region: str = "us-east-1"


class MountGrants(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Host directories, endpoints of buckets (`name` or `name:port`), and named buckets that clients may mount."""

    directories: tuple[str, ...] = ()
    buckets: tuple[str, ...] = ()
    bindings: dict[str, BucketBinding] = {}

    def check_bucket(self, mount: BucketMount) -> None:
        """Raise PermissionDenied for an endpoint that the configuration does not name."""
        if mount.host not in self.buckets and f"{mount.host}:{mount.port}" not in self.buckets:
            raise PermissionDenied(f"this server does not allow buckets of {mount.host}: its `allow_buckets` name them")
