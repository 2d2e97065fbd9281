"""The bubblewrap backend: namespaces, mounts and the seccomp filter; as root, by a host user of the sandbox's own."""

import math
import os
import resource
import shutil
from contextlib import ExitStack
from dataclasses import replace

from cove.core.jail import (
    AGENT_DIRECTORY,
    BUILT_IN_ENV,
    HOME,
    SHELL_DIRECTORY,
    SUDO_DIRECTORY,
    WORKSPACE,
    agent_command,
    image_environment,
    jail_arguments,
    place_mark,
)
from cove.core.limits import GUARDED, guards
from cove.core.users import User
from cove.errors import SandboxUnavailable
from cove.layers.record import System
from cove.linux.descriptors import sealed_file
from cove.linux.subordinate import fits
from cove.model import CodeInterpreter
from cove.runtime.home import Place
from cove.runtime.interpreters import NodeProgram, PythonProgram, inside_image, inside_jail
from cove.runtime.isolation.backend import Inside, Launch
from cove.runtime.machine import Machine

_SEARCHED = "/usr/bin:/bin"
# Processes of a range's first user that are not inside: bubblewrap, egress, helpers.
_OUTSIDE = 16


class Bubblewrap:
    """The agent is PID 1 of a jail that `core.jail` describes."""

    tells_agent_pid = True
    has_user_of_its_own = True
    warnings: tuple[str, ...] = ()

    def inside(self, machine: Machine, place: Place, system: System | None) -> Inside:
        """Give the fixed places of the jail."""
        if system is not None:
            return _inside_image(machine, place, system)
        return Inside(
            interpreter=(machine.interpreter_inside,),
            agent=AGENT_DIRECTORY,
            shell=SHELL_DIRECTORY,
            workspace=WORKSPACE,
            env=BUILT_IN_ENV,
            interpreters=inside_jail(
                machine.python is not None, machine.node, HOME, has_packages=machine.has_node_packages
            ),
        )

    def command(self, launch: Launch, stack: ExitStack) -> tuple[list[str], list[int]]:
        """Run bwrap, which becomes the agent's parent."""
        machine, spec = launch.machine, launch.spec
        program = stack.enter_context(sealed_file(machine.require_filter(emulates_root=_emulates_root(launch))))
        arguments = jail_arguments(
            spec,
            launch.host,
            launch.mounts.mounts,
            launch.mounts.staged,
            info_descriptor=launch.info,
            filter_descriptor=program.fileno(),
            block_descriptor=launch.block,
            users_descriptor=launch.users,
        )
        file = stack.enter_context(sealed_file(arguments.encode()))
        command = [*_bounded(launch), machine.require_bubblewrap(), "--args", str(file.fileno()), *_agent(launch)]
        kept = [launch.control, launch.info, file.fileno(), program.fileno()]
        return command, [*kept, *(each for each in (launch.block, launch.users) if each is not None)]


def _limits(launch: Launch) -> dict[str, int]:
    return {**guards(launch.spec.limits, _own_limits()), **launch.limits}


def most_processes(launch: Launch) -> int | None:
    """Return how many processes all users of a range have together, with those that work for them outside."""
    most = _limits(launch).get("RLIMIT_NPROC")
    return None if most is None else most + _OUTSIDE


def _bounded(launch: Launch) -> list[str]:
    """Hold all users of a range together to a number of processes; inside, the limit counts for each of them.

    The limit of who makes a user namespace is that of all in it: user_namespaces(7), RLIMIT_NPROC.
    """
    most = most_processes(launch)
    if launch.place.users == 1 or launch.users is not None or most is None:
        return []
    program = shutil.which("prlimit", path=_SEARCHED)
    if program is None:
        raise SandboxUnavailable(
            "prlimit is not installed, which limits the processes of all users: install util-linux"
        )
    return [program, f"--nproc={most}"]


def _agent(launch: Launch) -> list[str]:
    machine, limits = launch.machine, launch.spec.limits
    all_limits = _limits(launch)
    mark = place_mark(launch.place.key)
    inside, open_files = _interpreter(machine, launch.system), machine.open_files(limits)
    return agent_command(inside, AGENT_DIRECTORY, launch.control, open_files, all_limits, mark, _sudo(launch))


def _sudo(launch: Launch) -> str | None:
    system = launch.system
    if system is None:
        return None
    return str(system.user_id) if system.sudo and system.user_id and launch.place.users > 1 else "off"


def _interpreter(machine: Machine, system: System | None) -> tuple[str, ...]:
    inside = machine.interpreter_inside
    return (inside,) if system is None else machine.beside_image(inside)


def _emulates_root(launch: Launch) -> bool:
    """Return whether root is to be pretended: where users are real there is nothing to pretend."""
    return launch.system is not None and launch.system.user_id == 0 and launch.place.users == 1


def _inside_image(machine: Machine, place: Place, system: System) -> Inside:
    bash = ("/bin/bash",) if system.has_bash else machine.beside_image(os.path.realpath("/bin/bash"), "bash")
    none = inside_jail(False, None, system.home, has_packages=machine.has_node_packages)
    return Inside(
        interpreter=_interpreter(machine, system),
        agent=AGENT_DIRECTORY,
        shell=SHELL_DIRECTORY,
        workspace=system.workdir,
        env=_environment(system),
        interpreters=replace(
            none, image=system.image, pythons=_pythons(machine, system), nodes=_nodes(machine, system)
        ),
        bash=bash,
        user=_user(system, place).encode() if place.users > 1 else b"",
    )


def _environment(system: System) -> dict[str, str]:
    """Give the variables of the image; our `sudo` comes first where it works, last where it says why it does not."""
    env = {**image_environment(system.user, system.home), **system.env}
    path = [SUDO_DIRECTORY, env["PATH"]] if system.sudo else [env["PATH"], SUDO_DIRECTORY]
    return {**env, "PATH": ":".join(path)}


def _pythons(machine: Machine, system: System) -> tuple[PythonProgram, ...]:
    """Return those for code contexts; none without an environment that fits the host's own Python."""
    version = machine.interpreter.version
    if machine.python is None or not (machine.python / f"lib/python{version[0]}.{version[1]}/site-packages").is_dir():
        return ()
    return inside_image(version, _interpreter(machine, system), system.python, system.python_version)


def _nodes(machine: Machine, system: System) -> tuple[NodeProgram, ...]:
    """Return the image's Node.js, then the host's."""
    image = [NodeProgram((system.node,), CodeInterpreter.IMAGE)] if system.node else []
    own = [] if machine.node is None else [NodeProgram(machine.beside_image(machine.node))]
    return (*image, *own)


def _user(system: System, place: Place) -> User:
    groups = system.groups if place.slice is None else tuple(filter(fits, system.groups))
    return User(system.user_id, system.group_id, system.user, system.home, groups)


def _own_limits() -> dict[str, float]:
    hard = {name: resource.getrlimit(getattr(resource, name))[1] for name in GUARDED}
    return {name: math.inf if most == resource.RLIM_INFINITY else most for name, most in hard.items()}
