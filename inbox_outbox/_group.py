"""A group of commands, whose help fits a terminal."""

from collections.abc import Callable
from inspect import cleandoc
from typing import Any, TypeVar

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

Command = TypeVar("Command", bound=Callable[..., Any])


class _CommandWithHelp(TyperCommand):
    def __init__(self, *args: Any, help: str | None = None, **options: Any) -> None:  # noqa: A002
        super().__init__(*args, help=_flowing(help), **options)

    def get_params(self, ctx: Any) -> Any:
        return _without_types(super().get_params(ctx))


class _GroupWithHelp(TyperGroup):
    def get_params(self, ctx: Any) -> Any:
        return _without_types(super().get_params(ctx))


class CommandGroup(typer.Typer):
    """Commands under one name. Their help breaks lines where the terminal ends, not where a docstring does,
    and shows no type for flags and arguments; the list of commands has the first paragraph of each
    docstring."""

    def __init__(self, **options: Any) -> None:
        super().__init__(cls=_GroupWithHelp, no_args_is_help=True, **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[[Command], Command]:
        """Add a command, as typer does."""
        return super().command(name, cls=_CommandWithHelp, **options)


def _flowing(text: str | None) -> str:
    """The text with a line for each paragraph."""
    return "\n\n".join(" ".join(each.split()) for each in cleandoc(text or "").split("\n\n"))


def _without_types(parameters: list[Any]) -> list[Any]:
    for each in parameters:
        if getattr(each, "is_flag", False):
            each.metavar = ""
        if getattr(each, "envvar", None) is None:
            each.show_envvar = False  # each option has one; see the help of `inbox-outbox`
        if isinstance(each, TyperArgument):
            each.display_type_rich = lambda **_: None  # type: ignore[method-assign]
    return parameters
