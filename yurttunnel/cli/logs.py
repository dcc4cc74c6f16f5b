"""``yurttunnel logs-level``: shows or temporarily changes the log level of a process."""

from __future__ import annotations

from twisted.python import usage

from yurttunnel.cli import output
from yurttunnel.cli.client import CommandFailed, Process
from yurttunnel.cli.discovery import program_of
from yurttunnel.cli.options import PROGRAM, STATE_DIR, ClientCommand, ClientOptions
from yurttunnel.ops import flags
from yurttunnel.ops.debug.log_level import DEFAULT_SECONDS, MAX_SECONDS
from yurttunnel.ops.flag_table import Flag, Group
from yurttunnel.ops.help import Example

PAGE = "/debug/log-level"


def _duration(text: str) -> int:
    """Parse the duration of the change."""
    seconds = round(flags.duration(text))
    if not 1 <= seconds <= MAX_SECONDS:
        raise ValueError(f"{text!r} is not from 1 s to {MAX_SECONDS // 3600} h")
    return seconds


SET = Flag(
    "set",
    Group.BASICS,
    flags.one_of("debug", "info", "warn"),
    "Lowest level to log: debug, info or warn.",
)
FOR = Flag(
    "for",
    Group.BASICS,
    _duration,
    "How long the level stays changed.",
    default=f"{DEFAULT_SECONDS}s",
)


class LogsLevelOptions(ClientOptions):
    """Options of ``yurttunnel logs-level``."""

    longdesc = """Shows the log level of a running program, or changes it for a limited time
    without a restart."""

    examples = (
        Example("Log everything for ten minutes", "--set debug --for 10m"),
        Example("Show the log level of the agent on this machine", "--program agent"),
    )

    table = (SET, FOR, PROGRAM, STATE_DIR)

    def make_settings(self) -> None:
        """Reject a duration without a level: it would change nothing."""
        super().make_settings()
        if self._has_flag(FOR) and not self._has_flag(SET):
            raise usage.UsageError("--for has no effect without --set LEVEL: add it")

    def process(self, program: str) -> Process:
        """Return the process; reject a named directory that belongs to another program."""
        process = super().process(program)
        # Every program would respond.
        if self._has_flag(PROGRAM) and (found := program_of(process)) not in ("", program):
            raise CommandFailed(
                f"the process in {process.path.parent} is the {found}, but --program names"
                f" {program}: name that program's directory, or leave out one of the two"
            )
        return process


def logs_level(options: LogsLevelOptions) -> None:
    """Change the level if requested, and print the current one."""
    process = options.process(options.value(PROGRAM))
    level = options.optional_value(SET, None)
    if level is None:
        response = process.get_text(PAGE)
    else:
        response = process.post_text(PAGE, level=level, seconds=str(options.value(FOR)))
    print(output.shown(response.strip()))


LOGS_LEVEL = ClientCommand(
    "logs-level", "show a log level, or change it for a while", LogsLevelOptions, logs_level
)
