"""Make the jail of a sandbox: prepare its files and control groups, start its agent and the first launcher."""

from collections.abc import Callable, Sequence

from cove.attach import Action
from cove.errors import SandboxUnavailable
from cove.local.threads import in_thread
from cove.model import Outcome, SandboxSpec
from cove.model.spec import HOST_IMAGE
from cove.runtime.attachment import Attachment
from cove.runtime.cgroups import SandboxGroups, make_groups
from cove.runtime.disk import attach_disk
from cove.runtime.home import Place
from cove.runtime.jail import Jail
from cove.runtime.jail_start import start_jail
from cove.runtime.layers import SandboxLayers
from cove.runtime.machine import Machine
from cove.runtime.memory_kills import MemoryKills
from cove.runtime.spawner import Spawner


def begin_attachment(machine: Machine, place: Place, spec: SandboxSpec) -> Attachment | None:
    """Start what will show an image to the jail, while its files are prepared. The caller closes it. Blocks."""
    if spec.image == HOST_IMAGE:
        return None
    attachment = Attachment(machine, place.user_id)
    attachment.start_helper()
    return attachment


async def close_attachment(attachment: Attachment | None) -> None:
    """End what was started by `begin_attachment`. Idempotent."""
    if attachment is not None:
        await in_thread(attachment.close)


def prepare_files(id: str, machine: Machine, place: Place, spec: SandboxSpec, layers: SandboxLayers) -> SandboxGroups:
    """Attach the disk, prepare the layers, and make the control groups, which the caller removes. Blocks."""
    has_disk = attach_disk(place.path, spec.limits, place.user_id)
    try:
        layers.prepare(spec, on_disk_image=has_disk)
    except OSError as error:
        raise SandboxUnavailable(f"the files of sandbox {id} cannot be prepared: {error.strerror}") from error
    return make_groups(machine.hierarchies, place.key, spec.limits, has_disk=has_disk)


async def make_jail(
    machine: Machine,
    place: Place,
    spec: SandboxSpec,
    layers: SandboxLayers,
    groups: SandboxGroups,
    *,
    attach: Sequence[Action],
    attachment: Attachment | None,
    on_lost: Callable[[str], None],
) -> tuple[Jail, Spawner]:
    """Start the jail on those layers, and what starts processes in it. The caller shields it from cancel."""
    begun: list[Spawner] = []
    try:
        jail = await start_jail(
            machine,
            place,
            spec,
            groups,
            on_lost,
            attach=attach,
            attachment=attachment,
            directories=layers.place.directories,
            on_settled=lambda jail: begun.append(_spawn(jail)),
            system=layers.place.system,
            layers=layers.shown if layers.are_shown else None,
        )
    except BaseException:
        for spawner in begun:
            await spawner.close(Outcome.LOST)
        raise
    (spawner,) = begun
    return jail, spawner


def _spawn(jail: Jail) -> Spawner:
    """Make what starts processes in a jail, and its first launcher while the jail is finished."""
    kills = MemoryKills(jail.groups) if "memory" in jail.groups.controlled else None
    spawner = Spawner(jail.link, jail.groups.tree, lambda reason: jail.lose(reason), kills)  # noqa: PLW0108  # it changes
    spawner.begin()
    return spawner
