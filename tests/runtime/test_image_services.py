"""Services of Debian, installed and run in a sandbox by the policy for packages: as root that is real, or emulated."""

import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.users import CAN_MAP_USERS, needs_users

from cove import AsyncImage, AsyncSandbox, NetworkPolicy

SOURCES = [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*.sources")]
FOUND = next((str(path) for path in SOURCES if path.exists()), None)

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        shutil.which("mmdebstrap") is None or FOUND is None, reason="needs mmdebstrap and apt's sources"
    ),
]

# Where users are not real, apt's own user cannot be had.
APT = "apt-get -q" if CAN_MAP_USERS else "apt-get -q -o APT::Sandbox::User=root"
INSTALL = f"export DEBIAN_FRONTEND=noninteractive; {APT} update && {APT} install -y --no-install-recommends"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A minimal Debian from the mirror that this machine uses."""
    path = tmp_path_factory.mktemp("debian") / "root.tar"
    assert FOUND is not None
    command = ["mmdebstrap", "--variant=minbase", "bookworm", str(path), FOUND]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    return path


@pytest.fixture
async def debian(root: Path) -> AsyncIterator[str]:
    image = await AsyncImage.load(str(root), name="services")
    yield image.name
    await image.delete()


async def install(sandbox: AsyncSandbox, packages: str) -> None:
    done = await sandbox.exec(f"{INSTALL} {packages}", timeout=600)
    assert done.exit_code == 0, f"{done.stdout[-2000:]}{done.stderr[-2000:]}"


@needs_users
async def test_postgresql_is_installed_and_runs_as_its_own_user(debian: str) -> None:
    async with AsyncSandbox.create(image=debian, network=NetworkPolicy(allow=["packages"])) as sandbox:
        await install(sandbox, "postgresql")
        version = (await sandbox.exec("ls /etc/postgresql")).stdout.strip()
        start = f"pg_ctlcluster --foreground {version} main start"
        server = await sandbox.start_process(start, user="postgres")
        await server.wait_for_port(5432, mode="tcp", timeout=60)
        asked = await sandbox.exec("psql -Atc 'select current_user'", user="postgres")
        assert asked.stdout == "postgres\n", asked.stderr
        refused = await sandbox.exec("psql -Atc 'select 1'", user="nobody")
        assert refused.exit_code != 0


async def test_redis_and_nginx_are_installed_and_run(debian: str) -> None:
    async with AsyncSandbox.create(image=debian, user="root", network=NetworkPolicy(allow=["packages"])) as sandbox:
        await install(sandbox, "redis-server nginx-light")
        redis = await sandbox.start_process(["redis-server", "--protected-mode", "no"])
        await redis.wait_for_port(6379, mode="tcp", timeout=60)
        assert (await sandbox.exec("redis-cli set a 1 && redis-cli get a")).stdout.split() == ["OK", "1"]
        nginx = await sandbox.start_process(["nginx", "-g", "daemon off; error_log stderr;"])
        await nginx.wait_for_port(80, timeout=60)


async def test_users_and_alternatives_are_made(debian: str) -> None:
    async with AsyncSandbox.create(image=debian, user="root") as sandbox:
        made = await sandbox.exec("useradd --create-home alice && id -u alice && ls -d /home/alice")
        assert (made.exit_code, made.stdout) == (0, "1000\n/home/alice\n"), made.stderr
        chosen = await sandbox.exec("update-alternatives --install /usr/bin/chosen chosen /bin/true 1 && chosen")
        assert chosen.exit_code == 0, chosen.stderr
