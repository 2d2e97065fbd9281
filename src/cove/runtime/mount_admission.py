"""Judge a mount by what a server grants to its clients, and find what it needs on this machine. Blocks."""

from dataclasses import dataclass

import msgspec

from cove.core.mount_grants import MountGrants
from cove.core.network_grants import NetworkGrants
from cove.errors import PermissionDenied, SecretUnavailable
from cove.model import AnyMount, BucketMount, Mount
from cove.runtime.bucket_endpoint import pin_endpoint
from cove.runtime.mounts import resolve_beneath, resolve_mount
from cove.runtime.secrets import read_secrets


@dataclass(frozen=True, slots=True)
class Grants:
    """Grants of a server's configuration; both None in a program of your own."""

    mounts: MountGrants | None = None
    network: NetworkGrants | None = None

    def admit(self, mount: AnyMount, home: str, *, has_credentials: bool) -> AnyMount:
        """Return the mount with a path that has no links; refuse what may not be mounted."""
        if isinstance(mount, Mount):
            return resolve_mount(self._below_a_grant(mount), home)
        if isinstance(mount, BucketMount):
            self._check_bucket(mount, has_credentials=has_credentials)
        return mount

    def _below_a_grant(self, mount: Mount) -> Mount:
        if self.mounts is None:
            return mount
        sources = (resolve_beneath(mount.source, directory) for directory in self.mounts.directories)
        source = next((source for source in sources if source is not None), None)
        if source is None:
            raise PermissionDenied(f"this server does not allow to mount {mount.source}")
        return msgspec.structs.replace(mount, source=source)

    def _check_bucket(self, mount: BucketMount, *, has_credentials: bool) -> None:
        if self.mounts is None or self.network is None:
            return
        self.mounts.check_bucket(mount)
        if mount.credentials is not None and not has_credentials:
            self.network.check_secret(mount.credentials.name, mount.host)

    def prepare_bucket(self, mount: BucketMount, given: str | None) -> tuple[str | None, str | None]:
        """Return its credentials, those that were `given` or those of its secret, and the only hosts it may know."""
        self._check_bucket(mount, has_credentials=given is not None)
        hosts = None if self.network is None else pin_endpoint(mount, self.network)
        if given is not None or mount.credentials is None:
            return given, hosts
        name = mount.credentials.name
        values = read_secrets([name], None if self.network is None else self.network.secrets)
        if name not in values:
            raise SecretUnavailable(f"secret {name}, the credentials of {mount.url}, cannot be had")
        return values[name], hosts
