"""``yurttunnel config check``: validates a file for ``--config`` of a program."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from twisted.python import usage

from yurttunnel.cli import output
from yurttunnel.cli.client import CommandFailed
from yurttunnel.cli.options import NAMES, ClientCommand, ClientOptions, Word
from yurttunnel.cli.programs import PROGRAMS
from yurttunnel.ops import flags
from yurttunnel.ops.configuration.file import OWN_KEY, BadConfiguration, parse_file, with_path
from yurttunnel.ops.flag_table import Flag, Group
from yurttunnel.ops.help import Example
from yurttunnel.ops.options import CommandOptions, FlagMissing

Programs = Mapping[str, type[CommandOptions[Any]]]
"""The options of the programs that have ``--config``, by name."""


def check_file(options: type[CommandOptions[Any]], path: Path) -> str | None:
    """Validate a file, and return what the program needs besides it on its command line.

    Returns ``None`` if the file is complete. Raises ``UsageError`` if it is invalid. Environment
    variables apply as when the program starts.
    """
    checked = options()
    checked.check_values(checked.read_file(path))
    try:
        checked.parseOptions([f"--{OWN_KEY}={path}"])
    except FlagMissing as error:
        return str(error)
    except usage.UsageError as error:
        raise BadConfiguration(with_path(path, error)) from None
    return None


def program_of(programs: Programs, path: Path) -> str:
    """Return which of ``programs`` a file is for: the first of those that know most of its keys.

    Raises ``UsageError`` if the file cannot be read.
    """
    keys = parse_file(path).keys()
    return max(
        programs, key=lambda name: len(keys & {entry.name for entry in programs[name].table})
    )


PROGRAM = Flag(
    "program",
    Group.BASICS,
    flags.one_of(*NAMES),
    "Program that the file is for: server, agent, hub or proxy. [default: the one with most of its"
    " keys]",
)


class ConfigCheckOptions(ClientOptions):
    """Options of ``yurttunnel config check``."""

    longdesc = """Checks a file for --config without starting anything: that it is valid TOML, that
    its keys are flags, and that their values are valid and compatible. An error is one line with
    the file and the key, and the exit status is 64."""

    examples = (
        Example("Check the configuration of a server", "server.toml"),
        Example("Check it as that of an agent", "agent.toml --program agent"),
    )

    words = (Word("FILE", flags.path),)
    table = (PROGRAM,)


def config_check(options: ConfigCheckOptions) -> None:
    """Check the file, and print which program it is valid for."""
    path = Path(options.positionals[0])
    with suppress(OSError):
        # The error is reported below; a pipe could not be read twice.
        if path.is_fifo():
            raise CommandFailed(
                f"{path} is a pipe, which can be read only once: save its content to a file and"
                " name that"
            )
    programs = _programs()
    name = options.optional_value(PROGRAM, None)
    if name is None and not parse_file(path):
        print(output.shown(f"{path} is valid, but sets nothing"))
        return
    name = name or program_of(programs, path)
    also_needed = check_file(programs[name], path)
    print(output.shown(f"{path} is valid for yurttunnel {name}"))
    if also_needed is not None:
        print(output.shown(f"also needed on the command line or in a variable: {also_needed}"))


def _programs() -> Programs:
    return {each.name: type(each.options()) for each in PROGRAMS if each.name in NAMES}


CONFIG_CHECK = ClientCommand(
    "config check", "check a configuration file for --config", ConfigCheckOptions, config_check
)
