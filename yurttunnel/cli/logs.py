"""``yurttunnel logs-level``: how much a process logs, for a while."""

from __future__ import annotations

from yurttunnel.cli import output
from yurttunnel.cli.client import Process
from yurttunnel.cli.finding import one, running
from yurttunnel.cli.options import STATE_DIR, AskingCommand, AskingOptions
from yurttunnel.ops import flags
from yurttunnel.ops.debug.log_level import DEFAULT_SECONDS, MOST_SECONDS
from yurttunnel.ops.flag_table import Flag, Group

PAGE = "/debug/log-level"

LEVELS = ("debug", "info", "warn")


def _level(text: str) -> str:
    """Parse a level."""
    if text not in LEVELS:
        raise ValueError(f"{text!r} is none of these: {', '.join(LEVELS)}")
    return text


def _while(text: str) -> int:
    """Parse for how long."""
    seconds = round(flags.duration(text))
    if not 1 <= seconds <= MOST_SECONDS:
        raise ValueError(f"{text!r} is not from 1 s to {MOST_SECONDS // 3600} h")
    return seconds


def _program(text: str) -> str:
    """Parse which program is meant."""
    if text not in ("server", "agent"):
        raise ValueError(f"{text!r} is none of these: server, agent")
    return text


SET = Flag("set", Group.BASICS, _level, "Log from this level on: debug, info or warn.")
FOR = Flag(
    "for",
    Group.BASICS,
    _while,
    "For how long; then it is as before.",
    default=f"{DEFAULT_SECONDS}s",
)
PROGRAM = Flag(
    "program", Group.BASICS, _program, "Which one is meant, server or agent.", default="server"
)


class LogsLevelOptions(AskingOptions):
    """Options of ``yurttunnel logs-level``."""

    longdesc = """Says from which level on a server or agent logs, or has it log from another one
    for a while, without a restart."""

    table = (SET, FOR, PROGRAM, STATE_DIR)


def logs_level(options: LogsLevelOptions) -> None:
    """Change it if that is wanted, and say what it is."""
    process: Process = one(options.state_dir, options.value(PROGRAM), running())
    level = options.optional_value(SET, None)
    if level is None:
        told = process.get_text(PAGE)
    else:
        told = process.post_text(PAGE, level=level, seconds=str(options.value(FOR)))
    print(output.shown(told.strip()))


LOGS_LEVEL = AskingCommand(
    "logs-level", "how much a process logs, for a while", LogsLevelOptions, logs_level
)
