"""Root of a sandbox on an image, who can be any user of its range, in want of processes."""

from pathlib import Path

import pytest
from support.busybox import needs_busybox, write_busybox
from support.image_files import Item
from support.users import needs_users

from cove import AsyncImage, AsyncSandbox, Limits
from cove.runtime import cgroups

pytestmark = [pytest.mark.anyio, needs_busybox, needs_users]

MOST = 30
USERS = 4
PASSWD = "root:x:0:0:root:/root:/bin/sh\n" + "".join(f"u{at}:x:{at}:{at}::/:/bin/sh\n" for at in range(1, USERS + 1))
# Each user starts less than it may.
FORK = f"for one in $(busybox seq {MOST - 10}); do sleep 100 & echo started; done"


async def test_other_users_give_root_no_more_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no control group counts processes, the kernel counts them for each user, and for the namespace."""
    monkeypatch.setattr(cgroups, "choose_settings", lambda *_: ([], []))
    path = write_busybox(tmp_path / "image.tar", Item("etc/passwd", PASSWD.encode()), settings={"Env": ["PATH=/bin"]})
    image = await AsyncImage.load(path, name="processes")
    async with AsyncSandbox.create(image=image.name, limits=Limits(pids=MOST)) as sandbox:
        assert "limit pids is held by RLIMIT_NPROC" in str((await sandbox.info()).warnings)
        command = "; ".join(f"busybox su u{at} -c '{FORK}'" for at in range(1, USERS + 1))
        result = await sandbox.exec(command)
        assert MOST - 10 <= result.stdout.count("started") < 2 * MOST
    await image.delete()
