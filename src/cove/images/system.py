"""Make the system of a sandbox from an image: its user, environment and directory. What the image says is hostile."""

import re
from collections.abc import Sequence
from pathlib import Path

from cove.archive.tar import Refused
from cove.errors import ImageInvalid
from cove.images.interpreters import find_node, find_python
from cove.images.manifest import Settings
from cove.images.merged_view import opened_view
from cove.images.parts import has_directory
from cove.images.record import ImageRecord
from cove.images.users import find_image_user
from cove.layers.record import ROOT, System
from cove.layers.store import LayerStore

_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=([^\0]*)", re.DOTALL)
_MOST_VARIABLES = 1000
_MOST_VALUE = 32 << 10
_MOST_WORDS = 1000
_WORKSPACE = "/workspace"


def make_system(record: ImageRecord, layers: LayerStore, user: str | None) -> System:
    """Describe what a sandbox on that image has, for a user of the image or the one it names. Blocks."""
    try:
        return _make_system(record, layers, user)
    except Refused as error:
        raise ImageInvalid(f"the image {record.name} cannot be used: {error}") from None


def _make_system(record: ImageRecord, layers: LayerStore, user: str | None) -> System:
    settings = record.config.settings
    with opened_view(_roots(record.layers, layers)) as view:
        found = find_image_user(view, settings.User if user is None else user)
        env = _environment(settings)
        python, version = find_python(view, env) or ("", (0, 0))
        return System(
            image=record.name,
            user_id=found.id,
            group_id=found.group,
            user=found.name,
            home=found.home,
            groups=found.groups,
            env=env,
            workdir=_workdir([layers.data(id) for id in record.layers], settings),
            has_bash=view.has("/bin/bash"),
            startup=_startup(settings),
            python=python,
            python_version=version,
            node=find_node(view, env) or "",
        )


def _roots(ids: Sequence[str], layers: LayerStore) -> list[str]:
    paths: list[Path] = [layers.data(id) / ROOT for id in ids]
    return [str(path) for path in paths]


def _environment(settings: Settings) -> dict[str, str]:
    """Leave out what cannot be a variable."""
    found = [_VARIABLE.fullmatch(text) for text in (settings.Env or [])[:_MOST_VARIABLES] if len(text) < _MOST_VALUE]
    return {each[1]: each[2] for each in found if each is not None}


def _startup(settings: Settings) -> tuple[str, ...]:
    """Return the words that the image would run; none where they cannot be a command."""
    words = (*(settings.Entrypoint or ()), *(settings.Cmd or ()))
    is_sound = len(words) <= _MOST_WORDS and all(len(word) < _MOST_VALUE and "\0" not in word for word in words)
    return words if is_sound else ()


def _workdir(data: Sequence[Path], settings: Settings) -> str:
    """Take the image's directory where it is one."""
    path = settings.WorkingDir
    is_path = path.startswith("/") and "\0" not in path and path.isprintable()
    return path if is_path and has_directory(data, path) else _WORKSPACE
