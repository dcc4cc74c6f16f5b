"""``yurttunnel completion`` and ``yurttunnel man``: what shells and manuals know of commands."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from twisted.python import usage

from yurttunnel.cli import completion, manual
from yurttunnel.cli.options import ClientCommand, ClientOptions, Command
from yurttunnel.ops.command_line import did_you_mean

Commands = Callable[[], Sequence[Command]]


class CompletionOptions(ClientOptions):
    """Options of ``yurttunnel completion``."""

    longdesc = """Prints the script by which a shell completes commands and flags: bash, zsh or
    fish. For bash: source <(yurttunnel completion bash)."""

    words = ("bash|zsh|fish",)


class ManOptions(ClientOptions):
    """Options of ``yurttunnel man``."""

    longdesc = """Prints the page of the manual of a command, or of all of it without one. To read
    one: yurttunnel man server | man -l -. To keep one: yurttunnel man server >
    /usr/local/share/man/man1/yurttunnel-server.1."""

    words = ("COMMAND", "COMMAND")
    needed = 0


def tables(commands: Sequence[Command]) -> completion.Tables:
    """Return what completion needs of the commands."""
    return {each.name: (each.text, each.options().help().table) for each in commands}


def shell_commands(commands: Commands) -> tuple[ClientCommand, ...]:
    """Make both; ``commands()`` gives all that there are."""

    def complete(options: CompletionOptions) -> None:
        shell = options.given[0]
        script = completion.SHELLS.get(shell)
        if script is None:
            raise usage.UsageError(f"{shell!r} is none of these: {', '.join(completion.SHELLS)}")
        print(script(tables(commands())), end="")

    def man(options: ManOptions) -> None:
        name = " ".join(options.given)
        if not name:
            print(manual.overview([(each.name, each.text) for each in commands()]), end="")
            return
        for each in commands():
            if each.name == name:
                made = each.options()
                words = made.words if isinstance(made, ClientOptions) else ()
                page = manual.page(name, each.text, made.longdesc, words, made.table, made.examples)
                print(page, end="")
                return
        meant = did_you_mean(name, [each.name for each in commands()])
        raise usage.UsageError(
            f"there is no command {name!r}: {meant or 'yurttunnel --help lists those there are'}"
        )

    return (
        ClientCommand("completion", "complete commands in a shell", CompletionOptions, complete),
        ClientCommand("man", "a page of the manual", ManOptions, man),
    )
