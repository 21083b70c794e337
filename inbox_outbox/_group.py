"""A group of commands, whose help fits a terminal, and whose errors name the options as they are typed."""

import re
from collections.abc import Callable
from inspect import cleandoc
from typing import Any, TypeVar

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from inbox.errors import InvalidOption

Command = TypeVar("Command", bound=Callable[..., Any])


class _CommandWithHelp(TyperCommand):
    def __init__(self, *args: Any, help: str | None = None, **options: Any) -> None:  # noqa: A002
        super().__init__(*args, help=_flowing(help), **options)

    def get_params(self, ctx: Any) -> Any:
        return _without_types(super().get_params(ctx))

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except InvalidOption as error:
            error.args = (_as_typed(str(error), self.params, ctx.params),)
            raise


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


def _as_typed(message: str, parameters: list[Any], values: dict[str, Any]) -> str:
    """The message. A Python argument at its beginning that has an option becomes the option; a time is shown
    as it was given."""
    options = {
        name: each
        for each in parameters
        if each.opts[0].startswith("--")
        for name in (each.name, each.name + "s")  # an option that can be given several times
    }
    name = re.match(r"[\w-]+(?=[=:])", message)
    option = options.get(name[0].replace("-", "_")) if name else None
    if name is None or option is None:
        return message
    rest = re.sub(r"^=datetime\.timedelta\(.*?\)", f"={values[option.name]!r}", message[name.end() :])
    return f"{option.opts[0]}{rest}"
