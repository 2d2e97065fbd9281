"""Keys in Ray's global control store (GCS). Its interface is not public: all that Cove uses of it is here."""

from collections.abc import Iterable

from ray.experimental.internal_kv import internal_kv_get_gcs_client

from cove.server.ray_agent.engine import EngineFailed, Store

_NAMESPACE = b"cove"
_SECONDS = 5.0


class RayStore(Store):
    """A store that a driver of Ray has once it is connected."""

    def put_new(self, key: str, value: bytes) -> bool:
        return self._put(key, value, overwrite=False) == 1

    def put(self, key: str, value: bytes) -> None:
        self._put(key, value, overwrite=True)

    def _put(self, key: str, value: bytes, *, overwrite: bool) -> int:
        try:
            return int(
                internal_kv_get_gcs_client().internal_kv_put(key.encode(), value, overwrite, _NAMESPACE, _SECONDS)
            )
        except Exception as error:
            raise EngineFailed(f"cannot write {key}: {error}") from error

    def get_all(self, keys: Iterable[str]) -> dict[str, bytes]:
        wanted = [key.encode() for key in keys]
        if not wanted:
            return {}
        try:
            found = internal_kv_get_gcs_client().internal_kv_multi_get(wanted, _NAMESPACE, _SECONDS)
        except Exception as error:
            raise EngineFailed(f"cannot read {wanted[0].decode()}: {error}") from error
        return {bytes(key).decode(): bytes(value) for key, value in found.items()}

    def keys(self, prefix: str) -> list[str]:
        try:
            found = internal_kv_get_gcs_client().internal_kv_keys(prefix.encode(), _NAMESPACE, _SECONDS)
        except Exception as error:
            raise EngineFailed(f"cannot list {prefix}: {error}") from error
        return sorted(bytes(key).decode() for key in found)

    def delete(self, key: str) -> None:
        try:
            internal_kv_get_gcs_client().internal_kv_del(key.encode(), False, _NAMESPACE, _SECONDS)
        except Exception as error:
            raise EngineFailed(f"cannot remove {key}: {error}") from error
