"""The table of tools: the name, the arguments and the fixed type that a model's maker has given to some of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, cast

import msgspec

from cove.errors import ValidationFailed
from cove.tools import arguments as of
from cove.tools.arguments import Arguments
from cove.tools.result import Json, ToolFailed

_MOST_JSON_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool. `anthropic` and `openai` are the types under which the model knows it already.

    One that `has_limit` is defined with the characters that it shows at most.
    """

    name: str
    arguments: type[Arguments]
    anthropic: str | None = None
    openai: str | None = None
    has_limit: bool = False

    @property
    def description(self) -> str:
        """The text that a model reads before it calls the tool."""
        return " ".join((self.arguments.__doc__ or "").split())

    @property
    def schema(self) -> Json:
        """The JSON schema of its arguments."""
        return _schema(self.arguments)

    def decode(self, arguments: object) -> Arguments:
        """Check what a model has sent: an object, or JSON text of one; raises ToolFailed."""
        try:
            if isinstance(arguments, str | bytes):
                if len(arguments) > _MOST_JSON_BYTES:
                    raise ToolFailed(f"{self.name} takes at most {_MOST_JSON_BYTES >> 20} MiB of arguments")
                arguments = msgspec.json.decode(arguments or "{}")
            return msgspec.convert(arguments, self.arguments, strict=False)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ToolFailed(f"{self.name}: {error}. Its arguments are {self._signature()}") from None

    def _signature(self) -> str:
        required = cast("list[str]", self.schema["required"])
        properties = cast("dict[str, object]", self.schema["properties"])
        return "{" + ", ".join(name if name in required else f"{name}?" for name in properties) + "}"


@cache
def _schema(arguments: type[Arguments]) -> Json:
    """A schema without references: the arguments of tools hold no classes."""
    schema = msgspec.json.schema(arguments)
    definition = dict(cast("dict[str, Json]", schema["$defs"])[arguments.__name__])
    properties = cast("dict[str, Json]", definition["properties"])
    return {
        "type": "object",
        "properties": {name: _property(each) for name, each in properties.items()},
        "required": definition["required"],
        "additionalProperties": False,
    }


def _property(schema: Json) -> Json:
    """An argument that may be left out need not be null too: models do better with one type."""
    match schema:
        case {"anyOf": [dict() as kind, {"type": "null"}], "description": str(description)}:
            return {**kind, "description": description}
    return schema


GENERAL: Final = (
    Tool("run_command", of.RunCommand),
    Tool("start_process", of.StartProcess),
    Tool("read_output", of.ReadOutput),
    Tool("stop_process", of.StopProcess),
    Tool("run_code", of.RunCode),
    Tool("read_file", of.ReadFile),
    Tool("write_file", of.WriteFile),
    Tool("edit_file", of.EditFile),
    Tool("list_files", of.ListFiles),
    Tool("search_files", of.SearchFiles),
    Tool("expose_port", of.ExposePort),
    Tool("snapshot", of.MakeSnapshot),
    Tool("restore", of.Restore),
)

_FIXED: Final = (
    Tool("bash", of.Bash, anthropic="bash_20250124"),
    Tool("bash", of.Bash, anthropic="bash_20241022"),
    Tool("str_replace_based_edit_tool", of.TextEditor, anthropic="text_editor_20250728", has_limit=True),
    Tool("str_replace_based_edit_tool", of.TextEditor, anthropic="text_editor_20250429"),
    Tool("str_replace_editor", of.TextEditor, anthropic="text_editor_20250124"),
    Tool("str_replace_editor", of.TextEditor, anthropic="text_editor_20241022"),
    Tool("shell", of.Shell, openai="shell"),
    Tool("apply_patch", of.ApplyPatch, openai="apply_patch"),
)


def choose(names: Sequence[str] | None) -> dict[str, Tool]:
    """Return the tools with these names or types, by name; without names the general ones."""
    if names is None:
        return {tool.name: tool for tool in GENERAL}
    chosen: dict[str, Tool] = {}
    for name in names:
        tool = next((each for each in (*GENERAL, *_FIXED) if name in (each.name, each.anthropic)), None)
        if tool is None:
            known = dict.fromkeys([each.anthropic or each.name for each in (*GENERAL, *_FIXED)])
            raise ValidationFailed(f"there is no tool {name!r}: choose of {', '.join(known)}")
        if tool.name in chosen:
            raise ValidationFailed(f"the tool {tool.name!r} is named twice")
        chosen[tool.name] = tool
    return chosen
