"""A reset sandbox is as it was created, whatever was done to it and whatever runs in it."""

import pytest
from support.serving import MakeSandbox, Where

from cove import AsyncSandbox, Network, NetworkPolicy, ProcessNotFound, ResetReport, SessionNotFound, TransactionOpen

pytestmark = pytest.mark.anyio

HOSTILE = r"""
(setsid sh -c 'trap "" TERM INT HUP; while :; do sleep 1; done' > /dev/null 2>&1 &)
(setsid setsid sleep 1000 > /dev/null 2>&1 &)
echo x > /dev/shm/a; mkdir /dev/shm/d; mkfifo /dev/shm/fifo; chmod 700 /dev/shm
echo x > /tmp/t; echo x > /run/r; echo x > /var/tmp/v; mkdir /root-of-mine
chmod 0 /workspace /tmp; chmod 777 ~
python3 - <<'PYTHON'
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
made = [libc.shmget(4242, 4096, 0o1666), libc.semget(4242, 1, 0o1666), libc.msgget(4242, 0o1666)]
made.append(libc.mq_open(b"/queue", os.O_CREAT | os.O_RDWR, 0o600, None))
print(sum(each >= 0 for each in made))
PYTHON
"""
# All that a task can leave behind, but for what counts processes and time.
TELL = r"""
stat -c '%a %n' / /run /opt /var/tmp /dev/shm /tmp /workspace ~
ls -A / /run /opt /var/tmp /dev/shm /tmp /workspace ~
cat /proc/sysvipc/shm /proc/sysvipc/sem /proc/sysvipc/msg
env | sort; umask; ulimit -a; cat /proc/net/route
pgrep -x -c 'sh|sleep'
python3 -c 'import ctypes; print(ctypes.CDLL(None).mq_open(b"/queue", 2))'
"""


async def test_nothing_of_a_hostile_task_outlives_a_reset(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        before = (await sandbox.exec(TELL)).stdout
        process = await sandbox.start_process("sleep 1000", id="p")
        await sandbox.create_session(id="s")
        assert (await sandbox.exec(HOSTILE)).stdout == "4\n"
        assert (await sandbox.exec(TELL, cwd="/")).stdout != before
        report = await sandbox.reset()
        assert (report.method, report.files, report.processes, report.shared_memory) == ("empty", 0, 0, 0)
        assert (await sandbox.exec(TELL)).stdout == before
        with pytest.raises(ProcessNotFound):
            await sandbox.get_process(process.id)
        with pytest.raises(SessionNotFound):
            await sandbox.get_session("s")


async def test_the_proof_of_a_reset_names_the_layers_that_the_sandbox_stands_on(where: Where) -> None:
    async with AsyncSandbox.create(**where) as first:
        await first.exec("echo base > f")
        snapshot = await first.snapshot()
    try:
        proofs = []
        for _ in range(2):
            async with AsyncSandbox.create(snapshot=snapshot.id, **where) as sandbox:
                await sandbox.exec("rm f; echo x > g; echo y > /dev/shm/z; (setsid sleep 1000 &) > /dev/null 2>&1")
                proofs += [await sandbox.reset(), await sandbox.reset()]
                assert (await sandbox.exec("cat *; ls -A /dev/shm; pgrep -c sleep")).stdout == "base\n0\n"
    finally:
        await snapshot.delete()
    assert proofs[0].layers
    assert proofs == [ResetReport(method="layers", layers=proofs[0].layers)] * 4


async def test_a_reset_takes_back_what_was_set_since_the_creation(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox(env={"KEPT": "1"}, labels={"team": "a"}, network=Network.NONE) as sandbox:
        await sandbox.set_env({"KEPT": "2", "MORE": "3"})
        await sandbox.set_labels({"team": "b"})
        await sandbox.set_idle_timeout(900)
        await sandbox.set_network(NetworkPolicy(allow=["example.test"]))
        await sandbox.ports.expose(8000)
        before = (await sandbox.info()).spec
        await sandbox.reset()
        spec = (await sandbox.info()).spec
        assert before.labels == {"team": "b"}
        assert (spec.labels, spec.network, spec.idle_timeout) == ({"team": "a"}, Network.NONE, None)
        assert (await sandbox.exec("echo $KEPT$MORE")).stdout == "1\n"
        assert await sandbox.ports.list() == []


async def test_a_reset_needs_no_open_transaction_and_stays_after_a_restart(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        async with sandbox.transaction():
            with pytest.raises(TransactionOpen):
                await sandbox.reset()
        await sandbox.exec("echo a > a")
        await sandbox.reset()
        await sandbox.restart()
        assert (await sandbox.exec("ls")).stdout == ""


async def test_a_reset_starts_what_the_sandbox_starts_with(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox(startup=("sleep", "1000")) as sandbox:
        await sandbox.kill_process("startup", "KILL")
        report = await sandbox.reset()
        assert report.processes == 1
        assert [each.id for each in await sandbox.list_processes()] == ["startup"]


async def test_what_was_created_is_known_after_a_stop_too(where: Where) -> None:
    async with AsyncSandbox.create(labels={"team": "a"}, **where) as sandbox:
        await sandbox.set_labels({"team": "b"})
        await sandbox.stop()
        await sandbox.set_labels({"team": "c"})
        await sandbox.start()
        assert (await sandbox.info()).spec.labels == {"team": "c"}
        await sandbox.reset()
        assert (await sandbox.info()).spec.labels == {"team": "a"}
