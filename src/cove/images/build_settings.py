"""Apply the instructions of a Dockerfile that change an image's settings. Pure."""

import msgspec

from cove.images.dockerfile import Set
from cove.images.manifest import Settings
from cove.images.new_layer import join


def apply(settings: Settings, step: Set, *, keeps_command: bool) -> Settings:
    """Return the settings after a step. ENTRYPOINT drops the command of what the stage stands on, not its own."""
    match step.name:
        case "ENV":
            return msgspec.structs.replace(settings, Env=_set_variables(settings.Env or [], step.value))
        case "LABEL":
            pairs = (text.partition("=")[::2] for text in step.value)
            return msgspec.structs.replace(settings, Labels={**(settings.Labels or {}), **dict(pairs)})
        case "EXPOSE":
            ports: dict[str, dict[str, object]] = {text if "/" in text else f"{text}/tcp": {} for text in step.value}
            return msgspec.structs.replace(settings, ExposedPorts={**(settings.ExposedPorts or {}), **ports})
        case "WORKDIR":
            path = join(settings.WorkingDir, step.value[0])
            return msgspec.structs.replace(settings, WorkingDir=path.rstrip("/") or "/")
        case "USER":
            return msgspec.structs.replace(settings, User=step.value[0])
        case "ENTRYPOINT":
            command = settings.Cmd if keeps_command else None
            return msgspec.structs.replace(settings, Entrypoint=list(step.value), Cmd=command)
        case "CMD":
            return msgspec.structs.replace(settings, Cmd=list(step.value))
        case _:
            raise AssertionError(f"no setting: {step.name}")


def _set_variables(before: list[str], pairs: tuple[str, ...]) -> list[str]:
    """Set variables; one that is there keeps its place."""
    values = {text.partition("=")[0]: text for text in before}
    values |= {text.partition("=")[0]: text for text in pairs}
    return list(values.values())
