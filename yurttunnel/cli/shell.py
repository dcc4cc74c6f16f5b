"""``yurttunnel completion`` and ``yurttunnel man``: completion scripts and manual pages."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence

from twisted.python import usage

from yurttunnel.cli import completion, manual
from yurttunnel.cli.command_set import Commands, UnknownCommand
from yurttunnel.cli.options import ClientCommand, ClientOptions, Command, Word
from yurttunnel.ops import flags
from yurttunnel.ops.help import Example


class CompletionOptions(ClientOptions):
    """Options of ``yurttunnel completion``."""

    longdesc = """Prints the completion script for bash, zsh or fish, which completes commands,
    flags and values. For the current bash: source <(yurttunnel completion bash)."""

    examples = (
        Example("Enable completion in each new bash", "bash >> ~/.bashrc"),
        Example("The same for zsh", "zsh >> ~/.zshrc"),
        Example("The same for fish", "fish > ~/.config/fish/completions/yurttunnel.fish"),
    )

    words = (Word("SHELL", flags.one_of(*completion.SHELLS)),)


class ManOptions(ClientOptions):
    """Options of ``yurttunnel man``."""

    longdesc = """Shows the manual page of a command, or the overview without one. On a terminal it
    is shown by man(1) if that is installed, otherwise printed as roff."""

    examples = (
        Example("Read about the server's flags", "server"),
        Example(
            "Install the page for man yurttunnel-server",
            "server > /usr/local/share/man/man1/yurttunnel-server.1",
        ),
    )

    words = (Word("COMMAND"),)
    required = 0

    def parseArgs(self, *arguments: str) -> None:
        """Take the two words of a command as one name."""
        super().parseArgs(*([" ".join(arguments)] if arguments else []))


def tables(commands: Sequence[Command]) -> completion.Tables:
    """Return the descriptions of the commands for completion."""
    return {each.name: _described(each) for each in commands}


def _described(command: Command) -> completion.CommandTables:
    options = command.options()
    words = options.words if isinstance(options, ClientOptions) else ()
    choices = words[0].choices if words else ()
    return completion.CommandTables(command.text, options.help().table, choices)


def shell_commands(all_commands: Callable[[], Commands]) -> tuple[ClientCommand, ...]:
    """Return both commands; ``all_commands()`` returns those that they describe."""

    def complete(options: CompletionOptions) -> None:
        script = completion.SHELLS[options.positionals[0]]
        print(script(tables(all_commands().each())), end="")

    def man(options: ManOptions) -> None:
        if options.positionals:
            _show(_page(all_commands(), options.positionals[0]))
        else:
            commands = [(each.name, each.text) for each in all_commands().each()]
            _show(manual.overview(commands))

    return (
        ClientCommand("completion", "print a completion script", CompletionOptions, complete),
        ClientCommand("man", "show a manual page", ManOptions, man),
    )


def _show(page: str) -> None:
    """Print a page; on a terminal, replace the process by man(1), which shows it."""
    man = shutil.which("man")
    # Standard output is None in a process that was started without it (``>&-``).
    if man is None or sys.stdout is None or not sys.stdout.isatty():
        print(page, end="")
        return
    with tempfile.TemporaryFile() as file:
        file.write(page.encode())
        file.seek(0)
        # A pager reads its keys from the terminal, so standard input is free for the page.
        os.dup2(file.fileno(), 0)
        # Python ignores SIGPIPE, and leaving the pager early would then print an error.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.execv(man, [man, "-l", "-"])


def _page(commands: Commands, name: str) -> str:
    """Return the page of a command; raise ``UsageError`` if there is none."""
    try:
        command, others = commands.find(name.split() or [name])
    except UnknownCommand as error:
        raise usage.UsageError(str(error)) from None
    if others:
        raise usage.UsageError(f"unexpected argument {others[0]!r}: it belongs to no flag")
    help = command.options().help()
    return manual.page(
        command.name, command.text, help.description, help.words, help.table, help.examples
    )
