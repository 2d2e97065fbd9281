"""The backend without isolation: the same agent as a plain child, for trusted code on any machine."""

from contextlib import ExitStack

from cove.core.jail import BUILT_IN_ENV, PYTHON_DIRECTORY, agent_command, place_mark
from cove.layers.record import System
from cove.runtime.home import Place
from cove.runtime.interpreters import Interpreters, PythonProgram, host_nodes
from cove.runtime.isolation.backend import Inside, Launch
from cove.runtime.machine import Machine


class NoIsolation:
    """Paths inside are those of the host; the agent ends with its control socket."""

    tells_agent_pid = False
    has_user_of_its_own = False
    warnings = ("no isolation: code in this sandbox can do whatever you can",)

    def inside(self, machine: Machine, place: Place, system: System | None) -> Inside:
        """Give the places of the host."""
        python = None if machine.python is None else str(machine.python)
        agent, executor = str(machine.agent), str(machine.executor)
        return Inside(
            interpreter=(machine.interpreter.path,),
            agent=agent,
            shell=str(place.shell),
            workspace=str(place.workspace),
            env=_environment(python, place),
            interpreters=Interpreters(
                () if python is None else (PythonProgram((f"{python}/bin/python3",), agent),),
                host_nodes(machine.node),
                executor,
                str(place.home),
                machine.has_node_packages,
            ),
        )

    def command(self, launch: Launch, stack: ExitStack) -> tuple[list[str], list[int]]:
        """Run the agent itself."""
        machine, mark = launch.machine, place_mark(launch.place.key)
        open_files = machine.open_files(launch.spec.limits)
        program, directory = machine.interpreter.path, str(machine.agent)
        return agent_command([program], directory, launch.control, open_files, launch.limits, mark), [launch.control]


def _environment(python: str | None, place: Place) -> dict[str, str]:
    moved = {BUILT_IN_ENV["HOME"]: str(place.home), PYTHON_DIRECTORY: python or PYTHON_DIRECTORY}
    env = dict(BUILT_IN_ENV)
    for inside, outside in moved.items():
        env = {name: value.replace(inside, outside) for name, value in env.items()}
    return {**env, "TMPDIR": str(place.tmp)}
