"""Attach to one jail by the means that this machine has: while it starts, or while it runs. All calls here block."""

from collections.abc import Sequence
from dataclasses import dataclass

from cove.attach import (
    SECONDS,
    Action,
    Attached,
    AttachTree,
    BindFile,
    CloneTree,
    CopyTree,
    MoveMounts,
    NoNamespaces,
    Process,
    ShowLayers,
    Target,
    Thread,
    Unmount,
    fork_process,
    start_process,
)
from cove.errors import SandboxUnavailable
from cove.runtime.machine import Machine

_BESIDE_CODE = MoveMounts | BindFile | ShowLayers | CloneTree | AttachTree | Unmount | CopyTree | NoNamespaces


@dataclass(slots=True)
class Attachment:
    """Does the actions to one jail, once. `_helper` is a process, begun early, if one is needed."""

    machine: Machine
    user_id: int | None
    actions: Sequence[Action] = ()
    _helper: Process | None = None

    def prepare(self) -> None:
        """Begin what takes time: a fork of a server's zygote, or an interpreter, starts while the jail does."""
        if self._helper is None and any(map(self._needs_process, self.actions)):
            self.start_helper()

    def start_helper(self) -> None:
        """Start the helper before it is known what there is to do: something is."""
        self._helper = self._fork_helper() or start_process(self.machine.attach_command, self.user_id)

    def _fork_helper(self) -> Process | None:
        if self.machine.nursery is not None:
            return self.machine.nursery.fork(self.user_id)
        path = self.machine.attach_socket
        return None if path is None else fork_process(path, self.user_id)

    def wait_ready(self) -> None:
        """Wait until the helper runs, so that nobody has to while a jail stands still."""
        if self._helper is not None:
            self._helper.wait_ready()

    def begin(self, target: Target) -> None:
        """Do what changes nothing inside, of a jail that is still being built: put its layers together."""
        if self._helper is not None:
            self._helper.begin(target, [action for action in self.actions if self._needs_process(action)])

    def perform(self, target: Target, seconds: float = SECONDS) -> Attached:
        """Do all, in a thread of ours what can be done there. Not before `prepare`."""
        by_thread = [action for action in self.actions if not self._needs_process(action)]
        by_process = [action for action in self.actions if self._needs_process(action)]
        attached = Thread().perform(target, by_thread) if by_thread else Attached()
        if self._helper is None:
            return attached
        try:
            done = self._helper.perform(target, by_process, seconds)
        except BaseException:
            attached.close()
            raise
        return Attached(attached.sockets + done.sockets, done.trees, attached.refused + done.refused)

    def close(self) -> None:
        """End the helper. Idempotent."""
        if self._helper is not None:
            self._helper.close()

    def _needs_process(self, action: Action) -> bool:
        """Mounts are made beside code of the sandbox with no more than the rights of its user."""
        return not self.machine.can_enter_namespaces or isinstance(action, _BESIDE_CODE)


def attach(machine: Machine, target: Target, actions: Sequence[Action], seconds: float = SECONDS) -> Attached:
    """Do the actions to a jail that runs. Raises what cove.attach says. Blocks."""
    attachment = Attachment(machine, target.user_id, actions)
    try:
        attachment.prepare()
        return attachment.perform(target, seconds)
    except OSError as error:
        raise SandboxUnavailable(f"attaching to the sandbox failed: {error.strerror or error}") from error
    finally:
        attachment.close()
