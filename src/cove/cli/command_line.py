"""Split a command line into the options of a subcommand and the command that it runs."""

import shlex

import typer
from typer.core import TyperCommand

from cove.errors import ValidationFailed


class OpenCommand(TyperCommand):
    """A subcommand whose last argument is a command to run: from its first word on, options belong to that command.

    Ours stand anywhere before, also between the arguments that come first.
    """

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]  # typer's own
        """Put our options first, where the parser looks for them; refuse those that follow a shell line."""
        options = self._options(ctx)
        before = sum(param.param_type_name == "argument" for param in self.params) - 1
        ours, arguments, command = split_arguments(args, options, before)
        given = _options_after(command, options)
        if given is not None:
            line = shlex.join([*ours, *given, *arguments, command[0]])
            raise ValidationFailed(f"put options before the command, here: `{ctx.command_path} {line}`")
        return super().parse_args(ctx, [*ours, *arguments, *command])

    def _options(self, ctx: typer.Context) -> dict[str, bool]:
        """Each spelling of each option, and whether a value follows it."""
        params = [param for param in self.get_params(ctx) if param.param_type_name == "option"]
        return {
            name: not getattr(param, "is_flag", False)
            for param in params
            for name in (*param.opts, *param.secondary_opts)
        }


def split_arguments(words: list[str], options: dict[str, bool], before: int) -> tuple[list[str], list[str], list[str]]:
    """Tell apart our options, that many arguments before the command, and the command."""
    ours: list[str] = []
    arguments: list[str] = []
    rest = list(words)
    while rest and rest[0] != "--":
        if rest[0].startswith("-") and rest[0] != "-":
            length = _length(rest[0], options)
            ours += rest[:length]
            rest = rest[length:]
        elif len(arguments) < before:
            arguments.append(rest.pop(0))
        else:
            break
    return ours, arguments, rest


def _length(word: str, options: dict[str, bool]) -> int:
    """Return how many words an option takes; one that is not known is left to the parser, which refuses it."""
    return 2 if options.get(word, False) else 1


def _options_after(command: list[str], options: dict[str, bool]) -> list[str] | None:
    """Return the options of ours behind a whole shell line in one word; None where there is a doubt whose they are."""
    if len(command) < 2 or command[0] == "--" or len(command[0].split()) < 2:
        return None
    if not any(word.partition("=")[0] in options for word in command[1:]):
        return None
    given, _, others = split_arguments(command[1:], options, 0)
    return None if others else given
