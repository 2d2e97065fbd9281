"""Bucket mounts of the bridge protocol: at an endpoint that the server allows, or by a name that it gives."""

from collections.abc import Callable, Mapping
from typing import Final

from cove.core.file_path import collapse
from cove.errors import CoveError
from cove.http import Request, Response
from cove.local.threads import in_thread
from cove.model import BucketMount
from cove.runtime.sandbox import Sandbox
from cove.server.bridge.protocol import MOST_BODY_BYTES, answer_json, decode_object, failed, invalid

Fields = Mapping[str, object]


async def mount(sandbox: Sandbox, request: Request) -> Response:
    """`POST mount`. Credentials that come with it are kept for this mount alone."""
    fields = decode_object(await request.read(MOST_BODY_BYTES))
    _check_bucket(fields)
    path = _check_path(fields)
    options = _check_options(fields)
    _check_kind(fields, options)
    try:
        wanted = await _choose(sandbox, fields, options, path)
        await sandbox.mounts.add_with(wanted, _credentials(options))
    except CoveError as error:
        raise failed("mount_error", error.message) from None
    return answer_json({"ok": True})


async def unmount(sandbox: Sandbox, request: Request) -> Response:
    """`POST unmount`."""
    path = _check_path(decode_object(await request.read(MOST_BODY_BYTES)))
    if collapse(path) == "/":
        raise invalid("mountPath must not be the filesystem root")
    try:
        await sandbox.mounts.remove(path)
    except CoveError as error:
        raise failed("unmount_error", error.message) from None
    return answer_json({"ok": True})


async def _choose(sandbox: Sandbox, fields: Fields, options: Fields, path: str) -> BucketMount:
    prefix = str(options.get("prefix", "")).strip("/")
    read_only = options.get("readOnly") is True
    if "binding" in fields:
        grants = await in_thread(sandbox.mounts.sandbox.read_grants)
        bindings = {} if grants.mounts is None else grants.mounts.bindings
        binding = bindings.get(str(fields["binding"]))
        if binding is None:
            raise failed("mount_error", f"this server has no bucket named {fields['binding']}")
        url = f"{binding.url.rstrip('/')}/{prefix}".rstrip("/")
        return BucketMount(
            url=url,
            endpoint=binding.endpoint,
            target=path,
            credentials=binding.credentials,
            region=binding.region,
            read_only=read_only,
        )
    url = f"s3://{fields['bucket']}/{prefix}".rstrip("/")
    return BucketMount(url=url, endpoint=str(options["endpoint"]), target=path, read_only=read_only)


def _credentials(options: Fields) -> str | None:
    given = options.get("credentials")
    return f"{given['accessKeyId']}:{given['secretAccessKey']}" if isinstance(given, dict) else None


def _check_bucket(fields: Fields) -> None:
    if "bucket" in fields and not _is_text(fields["bucket"]):
        raise invalid("bucket must be a non-empty string")


def _check_path(fields: Fields) -> str:
    path = fields.get("mountPath")
    if not isinstance(path, str) or not path:
        raise invalid("mountPath must be a non-empty string")
    if not path.startswith("/"):
        raise invalid("mountPath must be an absolute path")
    return path


def _check_options(fields: Fields) -> Fields:
    options = fields.get("options")
    if not isinstance(options, dict):
        raise invalid("options must be an object")
    for name, (is_valid, wanted) in _OPTIONS.items():
        if name in options and not is_valid(options[name]):
            raise invalid(f"options.{name} must be {wanted}")
    return options


def _check_kind(fields: Fields, options: Fields) -> None:
    """Either a bucket at an endpoint, or one that the server knows by name."""
    if "binding" in fields:
        if not _is_text(fields["binding"]):
            raise invalid("binding must be a non-empty string")
        if "endpoint" in options:
            raise invalid("give either binding or options.endpoint, not both")
    elif "endpoint" not in options:
        raise invalid("give a binding, or a bucket with options.endpoint")
    elif "bucket" not in fields:
        raise invalid("options.endpoint needs a bucket")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _is_boolean(value: object) -> bool:
    return isinstance(value, bool)


def _is_list_of_text(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _are_credentials(value: object) -> bool:
    return isinstance(value, dict) and _is_text(value.get("accessKeyId")) and _is_text(value.get("secretAccessKey"))


_OPTIONS: Final[Mapping[str, tuple[Callable[[object], bool], str]]] = {
    "endpoint": (_is_text, "a non-empty string"),
    "s3fsOptions": (_is_list_of_text, "an array of strings"),
    "readOnly": (_is_boolean, "a boolean"),
    "prefix": (lambda value: isinstance(value, str), "a string"),
    "credentialProxy": (_is_boolean, "a boolean"),
    "credentials": (_are_credentials, "an object with accessKeyId and secretAccessKey"),
}
