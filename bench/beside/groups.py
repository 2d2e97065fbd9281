"""The comparisons: who stands beside whom, and by which figures."""

from dataclasses import dataclass

from bench.beside.contender import IDLE, OVERRUN, SESSIONS


@dataclass(frozen=True, slots=True)
class Figure:
    """One row: its key in what was measured, what readers are told, its unit, and whether less is better."""

    key: str
    label: str
    unit: str = "s"
    less_is_better: bool = True


@dataclass(frozen=True, slots=True)
class Column:
    """One contender; without a module of its own it is measured by the group's, in turn with the others."""

    name: str
    module: str = ""
    is_rival: bool = False  # needs the packages of others


@dataclass(frozen=True, slots=True)
class Group:
    """Contenders that are asked the same; Cove is the first."""

    key: str
    title: str
    columns: tuple[Column, ...]
    figures: tuple[Figure, ...]
    module: str = ""


GROUPS = (
    Group(
        key="tools",
        title="Sandboxes, shells and kernels",
        columns=(
            Column("Cove", "cove_embedded"),
            Column("swe-rex", "swe_rex", is_rival=True),
            Column("llm-sandbox", "llm_sandbox_bubblewrap", is_rival=True),
            Column("openai-agents", "openai_agents_local", is_rival=True),
            Column("jupyter", "jupyter_kernel", is_rival=True),
            Column("bare bwrap", "bare_bubblewrap"),
            Column("bare machine", "bare"),
        ),
        figures=(
            Figure("create", "create to first result"),
            Figure("lives", "sandboxes made, used, ended", "/s", less_is_better=False),
            Figure("exec", "exec true"),
            Figure("session", "session exec"),
            Figure("timed_session", "session exec, timeout"),
            Figure("overrun", f"timeout of {OVERRUN} s, and on"),
            Figure("sessions", f"{SESSIONS} sessions at once", "/s", less_is_better=False),
            Figure("stream", "50 MB of output", "B/s", less_is_better=False),
            Figure("key", "key and its echo"),
            Figure("cell", "code cell 1 + 1"),
            Figure("memory", "memory of one", "B"),
            Figure("density", f"memory, each of {IDLE} idle", "B"),
        ),
    ),
    Group(
        key="clients",
        title="Clients of one Cove server",
        columns=(Column("Cove's client"), Column("E2B's client")),
        figures=(
            Figure("create", "create, command, end"),
            Figure("exec", "a command"),
            Figure("cell", "code cell 1 + 1"),
            Figure("density", f"memory, each of {IDLE} idle", "B"),
        ),
        module="clients",
    ),
    Group(
        key="copies",
        title="200 MB in 5 000 files, of which 20 change",
        columns=(Column("Cove"), Column("cp -a"), Column("git worktree")),
        figures=(
            Figure("keep", "keep the state"),
            Figure("back", "go back to it"),
            Figure("copy", "a copy, and a command in it"),
            Figure("copies", "four copies at once"),
        ),
        module="copies",
    ),
    Group(
        key="network",
        title="Packages from an index",
        columns=(Column("Cove, by policy"), Column("direct")),
        figures=(Figure("install", "pip install six"),),
        module="network",
    ),
)
