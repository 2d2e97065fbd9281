"""Configuration of Inspect's sandbox `cove`: a model, or a file with the same fields."""

import json
import tomllib
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict

from cove.errors import ValidationFailed
from cove.model import Limits, NetworkPolicy, SpecFields

# Found by Inspect beside a task.
FILES = ["cove.yaml", "cove.toml", "cove.json"]


class CoveSandboxConfig(BaseModel):
    """The sandboxes of a task or a sample: `SandboxEnvironmentSpec("cove", CoveSandboxConfig(image="python:3.12"))`.

    `network` is none, internet, or the names that may be reached. `setup` is a script that runs in every sandbox first,
    before the files and the setup of its sample, as `setup_user` or the sandbox's own user. With `url` they are on that
    server, as with COVE_URL; its key is COVE_API_KEY. Sizes are bytes, times seconds. On a server a sandbox ends after
    its `lifetime`, whatever became of who made it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    image: str = "host"
    user: str | None = None
    sudo: bool = False
    workdir: str = "/workspace"
    env: dict[str, str] = {}
    network: Literal["none", "internet"] | list[str] = "none"
    memory: int | None = None
    cpus: float | None = None
    pids: int | None = None
    disk: int | None = None
    snapshot: str | None = None
    lifetime: float = 24 * 3600.0
    setup: str | None = None
    setup_user: str | None = None
    setup_timeout: float = 600.0
    url: str | None = None

    def __hash__(self) -> int:
        return hash(self.model_dump_json())

    def fields(self) -> SpecFields:
        """Return what a sandbox is created with."""
        network = self.network if isinstance(self.network, str) else NetworkPolicy(allow=tuple(self.network))
        return SpecFields(
            image=self.image,
            user=self.user,
            sudo=self.sudo,
            workdir=self.workdir,
            env=self.env,
            network=network,
            limits=Limits(memory=self.memory, cpus=self.cpus, pids=self.pids, disk=self.disk),
            snapshot=self.snapshot,
            lifetime=self.lifetime,
        )


def read_config(config: object) -> CoveSandboxConfig:
    """Read what a task or sample says: nothing, the path of a file, or a model. Blocks."""
    if config is None:
        return CoveSandboxConfig()
    if isinstance(config, str):
        return CoveSandboxConfig.model_validate(_read_file(Path(config)))
    if isinstance(config, CoveSandboxConfig):
        return config
    raise ValidationFailed(
        f"sandbox 'cove' takes a CoveSandboxConfig or the path of a file, not {type(config).__name__}"
    )


def _read_file(path: Path) -> dict[str, object]:
    text = path.read_text()
    readers = {".toml": tomllib.loads, ".json": json.loads, ".yaml": yaml.safe_load, ".yml": yaml.safe_load}
    reader = readers.get(path.suffix)
    if reader is None:
        raise ValidationFailed(f"{path.name} is no configuration of Cove's: name a .yaml, .toml or .json file")
    found = reader(text) or {}
    if not isinstance(found, dict):
        raise ValidationFailed(f"{path.name} must have the fields of CoveSandboxConfig")
    return found
