"""``yurttunnel completion`` and ``yurttunnel man``: what shells and manuals know of commands."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from twisted.python import usage

from yurttunnel.cli import completion, manual
from yurttunnel.cli.command_set import Commands, UnknownCommand
from yurttunnel.cli.options import ClientCommand, ClientOptions, Command, Word
from yurttunnel.ops import flags
from yurttunnel.ops.help import Example


class CompletionOptions(ClientOptions):
    """Options of ``yurttunnel completion``."""

    longdesc = """Prints the script by which a shell completes commands and flags: bash, zsh or
    fish. For bash: source <(yurttunnel completion bash)."""

    examples = (
        Example("To have each new bash complete", "bash >> ~/.bashrc"),
        Example("The same for zsh", "zsh >> ~/.zshrc"),
        Example("The same for fish", "fish > ~/.config/fish/completions/yurttunnel.fish"),
    )

    words = (Word("SHELL", flags.one_of(*completion.SHELLS)),)


class ManOptions(ClientOptions):
    """Options of ``yurttunnel man``."""

    longdesc = """Prints the page of the manual of a command, or of all of it without one. To read
    one: yurttunnel man server | man -l -. To keep one: yurttunnel man server >
    /usr/local/share/man/man1/yurttunnel-server.1."""

    examples = (
        Example("To read of the server's flags", "server | man -l -"),
        Example("To keep it", "server > /usr/local/share/man/man1/yurttunnel-server.1"),
    )

    words = (Word("COMMAND"),)
    needed = 0

    def parseArgs(self, *arguments: str) -> None:
        """Take the words of a command for one."""
        super().parseArgs(*([" ".join(arguments)] if arguments else []))


def tables(commands: Sequence[Command]) -> completion.Tables:
    """Return what completion needs of the commands."""
    return {each.name: (each.text, each.options().help().table) for each in commands}


def shell_commands(all_commands: Callable[[], Commands]) -> tuple[ClientCommand, ...]:
    """Make both; ``all_commands()`` gives those that there are."""

    def complete(options: CompletionOptions) -> None:
        script = completion.SHELLS[options.given[0]]
        print(script(tables(all_commands().each())), end="")

    def man(options: ManOptions) -> None:
        if options.given:
            print(_page(all_commands(), options.given[0]), end="")
        else:
            commands = [(each.name, each.text) for each in all_commands().each()]
            print(manual.overview(commands), end="")

    return (
        ClientCommand("completion", "complete commands in a shell", CompletionOptions, complete),
        ClientCommand("man", "a page of the manual", ManOptions, man),
    )


def _page(commands: Commands, name: str) -> str:
    """Return the page of a command; raises ``UsageError`` where there is none."""
    try:
        command, others = commands.find(name.split())
    except UnknownCommand as error:
        raise usage.UsageError(str(error)) from None
    if others:
        raise usage.UsageError(f"unexpected argument {others[0]!r}: it belongs to no flag")
    help = command.options().help()
    return manual.page(
        command.name, command.text, help.description, help.words, help.table, help.examples
    )
