"""Attach: enter the namespaces of a jail from outside, do there what needs rights that nothing inside has, and go.

    sockets = await jail.attach([NetworkSetup(ports=[80, 443])])      # 80, 443, then 127.0.0.53:53 as UDP and TCP
    sockets = await jail.attach([NetworkSetup(any_port=True)])        # one for all ports, if the kernel has nf_tables
    await jail.attach([BindFile("/srv/names", "/etc/resolv.conf")])   # a path of the host, or a descriptor
    jail = await start_jail(…, attach=[NetworkSetup(ports=[443])])    # while the agent starts; jail.sockets

Theory of operation. An action is a value; `plan` makes of a list of actions the list of steps that the helper performs
(attach/performer). The agent is pinned by its pidfd while its namespaces are opened, the user namespace that owns them
is asked of the kernel, and all go to the helper as descriptors. The helper is a process with the sandbox's own host
user, started by its interpreter or forked by a server's zygote or a nursery; it has one thread, so that it can enter a
user namespace. It is in the host's pid namespace, so that nothing inside can signal or trace it, and it ends with our
socket, or by its alarm. As root, what touches no path inside (the network), or is done before anything runs there
(limits, masks), is done by a thread of ours instead, which costs no process.

What can go wrong: a port is taken (PortInUse, and nothing has changed); a path inside leads over a link, or is missing
(PermissionDenied, FileNotFound); the sandbox has ended, the helper was killed, the kernel refuses (SandboxUnavailable).
Every action can be done again. Code inside that swaps names while a mount is placed gets that mount elsewhere in its
own sandbox, and nowhere else.
"""

from cove.attach import kernel, program
from cove.attach.actions import (
    COPY_OPTIONS,
    COPY_PROGRAM,
    Action,
    AttachTree,
    BindFile,
    Binds,
    CloneTree,
    CopyTree,
    MountOptions,
    MoveMounts,
    NetworkSetup,
    NetworkSysctls,
    NoNamespaces,
    ReadOnly,
    ShowLayers,
    Sysctls,
    Unmount,
    plan,
)
from cove.attach.target import Target
from cove.attach.visit import (
    SECONDS,
    Attached,
    Helper,
    MountBusy,
    Nursery,
    Process,
    Thread,
    can_enter_namespaces,
    fork_process,
    start_process,
)

__all__ = [
    "COPY_OPTIONS",
    "COPY_PROGRAM",
    "SECONDS",
    "Action",
    "AttachTree",
    "Attached",
    "BindFile",
    "Binds",
    "CloneTree",
    "CopyTree",
    "Helper",
    "MountBusy",
    "MountOptions",
    "MoveMounts",
    "NetworkSetup",
    "NetworkSysctls",
    "NoNamespaces",
    "Nursery",
    "Process",
    "ReadOnly",
    "ShowLayers",
    "Sysctls",
    "Target",
    "Thread",
    "Unmount",
    "can_enter_namespaces",
    "fork_process",
    "plan",
    "kernel",
    "program",
    "start_process",
]
