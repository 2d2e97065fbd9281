"""Mounts as values: buckets, volumes, what may be added, and how rclone is run."""

import msgspec
import pytest

from cove.core.bucket import (
    RcloneJail,
    copy_command,
    environment,
    list_command,
    mount_command,
    remote,
    secrets_in,
)
from cove.core.mount import attached, bound, check_addition, check_removal
from cove.core.mount_grants import MountGrants
from cove.errors import MountExists, PermissionDenied, SecretUnavailable, ValidationFailed
from cove.model import AnyMount, BucketMount, Isolation, Mount, SandboxSpec, VolumeMount
from cove.model.mount import check_mount, check_volume_name
from cove.model.spec import check_spec

pytestmark = pytest.mark.pure
BUCKET = BucketMount(url="s3://bucket/some/prefix/", endpoint="https://s3.example:9000", target="/data")
SECRET = "AKID:very/secret:token:with:colons"


def test_a_bucket_tells_its_parts() -> None:
    assert (BUCKET.bucket, BUCKET.prefix, BUCKET.host, BUCKET.port) == ("bucket", "some/prefix", "s3.example", 9000)
    whole = BucketMount(url="s3://bucket", endpoint="http://[::1]", target="/data")
    assert (whole.prefix, whole.host, whole.port) == ("", "::1", 80)
    assert BucketMount(url="s3://b", endpoint="https://s3.example", target="/data").port == 443
    for mount in (BUCKET, whole, Mount(source="/a", target="/b")):
        check_mount(mount)


@pytest.mark.parametrize(
    "fields",
    [
        {"url": "bucket"},
        {"url": "s3://"},
        {"url": "s3://UPPER"},
        {"url": "s3://ab"},
        {"url": "s3://bucket/a//b"},
        {"url": "s3://bucket/../b"},
        {"url": "s3://bucket/a\nb"},
        {"endpoint": "s3.example"},
        {"endpoint": "https://s3.example/path"},
        {"endpoint": "https://s3.example:0"},
        {"endpoint": "https://s3.example:x"},
        {"endpoint": "https://user@s3.example"},
        {"endpoint": "https://-"},
        {"endpoint": "https://[::1"},
        {"region": "EU West"},
    ],
)
def test_what_names_no_bucket_is_refused(fields: dict[str, str]) -> None:
    known = {"url": "s3://bucket", "endpoint": "https://s3.example", "target": "/data"}
    with pytest.raises(ValidationFailed):
        check_mount(msgspec.convert({**known, **fields}, BucketMount))


def test_names_of_volumes_are_names_of_files() -> None:
    for name in ("a", "A.b_c-1", "x" * 63):
        assert check_volume_name(name) == name
    for wrong in ("", ".a", "a/b", "x" * 64, "é", None):
        with pytest.raises(ValidationFailed):
            check_volume_name(wrong)
    with pytest.raises(ValidationFailed):
        check_mount(VolumeMount(volume="/", target="/data"))


def test_without_isolation_only_directories_are_named() -> None:
    check_spec(SandboxSpec(isolation=Isolation.NONE, mounts=(Mount(source="/a", target="/b"),)))
    with pytest.raises(ValidationFailed):
        check_spec(SandboxSpec(isolation=Isolation.NONE, mounts=(BUCKET,)))


def test_credentials_are_in_the_environment_alone() -> None:
    env = environment(BUCKET, SECRET)
    assert env["RCLONE_CONFIG_B_ACCESS_KEY_ID"] == "AKID"
    assert env["RCLONE_CONFIG_B_SECRET_ACCESS_KEY"] == "very/secret"
    assert env["RCLONE_CONFIG_B_SESSION_TOKEN"] == "token:with:colons"
    assert not any("ACCESS" in name for name in environment(BUCKET, None))
    copy = copy_command(BUCKET, outward=True, most_bytes=5)
    words = [*mount_command(BUCKET), *copy, *list_command(BUCKET)]
    assert not any(part in word for word in words for part in ("AKID", "very/secret", "token"))
    assert secrets_in(SECRET) == ["token:with:colons", "very/secret", "AKID"]
    assert secrets_in(None) == []
    for wrong in ("", "key", "key:", ":secret"):
        with pytest.raises(SecretUnavailable):
            environment(BUCKET, wrong)


def test_commands_name_the_prefix_and_the_direction() -> None:
    assert remote(BUCKET) == "b:bucket/some/prefix"
    assert remote(BucketMount(url="s3://bucket", endpoint="https://s3.example", target="/d")) == "b:bucket"
    assert copy_command(BUCKET, outward=True, most_bytes=None)[-2:] == ["/data", "b:bucket/some/prefix"]
    inward = copy_command(BUCKET, outward=False, most_bytes=1000)
    assert inward[-2:] == ["b:bucket/some/prefix", "/data"]
    assert inward[inward.index("--max-transfer") + 1] == "1000B"
    assert "--read-only" not in mount_command(BUCKET)
    read_only = BucketMount(url="s3://bucket", endpoint="https://s3.example", target="/d", read_only=True)
    assert "--read-only" in mount_command(read_only)


def test_an_rclone_that_reads_what_code_inside_writes_has_no_proc() -> None:
    plain = {"root_links": {"lib": "usr/lib"}, "root_directories": ("lib64",)}
    copying = RcloneJail(**plain, directory="/place/data").arguments("place=x", 5)  # type: ignore[arg-type]  # as a dict
    assert "--proc" not in copying
    assert "CAP_SYS_ADMIN" not in copying
    assert copying[copying.index("/place/data") + 1] == "/data"
    assert "/etc/resolv.conf" in copying
    looking = RcloneJail(**plain, hosts="/place/hosts").arguments("place=x", 5)  # type: ignore[arg-type]  # as a dict
    assert "/etc/resolv.conf" not in looking
    assert looking[looking.index("/place/hosts") + 1] == "/etc/hosts"
    mounting = RcloneJail(**plain, fuse="/dev/fuse", cache="/c").arguments("place=x", 5)  # type: ignore[arg-type]  # as a dict
    assert "--proc" in mounting
    assert "CAP_SYS_ADMIN" in mounting
    for words in (copying, looking, mounting):
        assert words[words.index("COVE_PLACE") + 1] == "place=x"
        assert "/root" not in words
        assert "/home" not in words


def test_a_server_grants_endpoints_by_name_or_with_a_port() -> None:
    for buckets in (("s3.example",), ("s3.example:9000",)):
        MountGrants(buckets=buckets).check_bucket(BUCKET)
    for others in ((), ("s3.example:443",), ("example",)):
        with pytest.raises(PermissionDenied):
            MountGrants(buckets=others).check_bucket(BUCKET)


def test_volumes_buckets_and_what_lies_in_them_are_attached() -> None:
    volume = VolumeMount(volume="kept", target="/data")
    inside, beside = Mount(source="/a", target="/data/a"), Mount(source="/a", target="/b")
    mounts: tuple[AnyMount, ...] = (volume, beside, inside)
    assert attached(mounts) == (volume, inside)
    assert bound(mounts) == (beside,)


def test_an_added_mount_covers_nothing_and_one_with_others_in_it_stays() -> None:
    outer, inner = VolumeMount(volume="kept", target="/data"), VolumeMount(volume="kept", target="/data/in")
    check_addition(inner, [outer])
    for present in ([inner], [outer]):
        with pytest.raises(MountExists):
            check_addition(outer, present)
    with pytest.raises(PermissionDenied):
        check_addition(VolumeMount(volume="kept", target="/workspace"), [])
    check_removal(inner, [outer, inner])
    with pytest.raises(ValidationFailed):
        check_removal(outer, [outer, inner])
