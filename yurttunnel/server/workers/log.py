"""Messages of workers in the log of the first process, so that there is one log."""

from __future__ import annotations

from string import Formatter
from typing import Any

from twisted.logger import ILogObserver, LogEvent, Logger, LogLevel, formatEvent
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.server.workers import messages
from yurttunnel.server.workers.channel import Channel

LONGEST_TEXT = 64 * 1024
"""Characters of a message, its fields together."""

_TEXT = "log_text"

_TAKEN = frozenset(
    # Those that Logger.emit has for itself, what Twisted adds for observers of its old kind, and
    # what the first process says of the worker.
    ("self", "level", "format", "time", "message", "isError", "system", "worker")
)


@implementer(ILogObserver)
class LogToFirst:
    """Has the first process log what there is to say; ``verbose`` may be changed at any time.

    Floods and the status page know a message by its format. So that is sent as it is, with those
    of the fields that are texts, numbers or truth values, and only what else the format asks for
    is filled in here.
    """

    def __init__(self, channel: Channel, verbose: bool) -> None:
        self._channel = channel
        self.verbose = verbose

    def __call__(self, event: LogEvent) -> None:
        """Send a message on."""
        level = event.get("log_level", LogLevel.info)
        if level < (LogLevel.debug if self.verbose else LogLevel.info):
            return
        written = {"level": level.name, "namespace": event.get("log_namespace", "-")}
        self._channel.send(messages.LOG, {**written, **_plain(event)})


def write_log(written: dict[str, Any], worker: int) -> None:
    """Log what a worker has sent."""
    log = Logger(namespace=written["namespace"])
    level = LogLevel.lookupByName(written["level"])
    log.emit(level, written["format"], worker=worker, **written["fields"])


def _plain(event: LogEvent) -> dict[str, Any]:
    """Return a format and fields for it that JSON has, which make the text of ``event``."""
    fields = {
        name: value
        for name, value in event.items()
        if not name.startswith("log_")
        and name not in _TAKEN
        and (value is None or isinstance(value, str | int | float))
    }
    try:
        format = _fill(event, fields)
    except (TypeError, ValueError):
        # No format, or none that can be read.
        format, fields[_TEXT] = f"{{{_TEXT}}}", formatEvent(event)
    failure = event.get("log_failure")
    if isinstance(failure, Failure):
        format += "\n{log_traceback}"
        fields["log_traceback"] = failure.getTraceback()
    return {"format": format, "fields": _shortened(fields)}


def _fill(event: LogEvent, fields: dict[str, Any]) -> str:
    """Return the format with what is in ``fields``, to which texts are added for all else."""
    format = ""
    for number, (literal, name, spec, conversion) in enumerate(Formatter().parse(_format(event))):
        format += literal.replace("{", "{{").replace("}", "}}")
        if name is None:
            continue
        shape = (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "")
        replacement = f"{{{name}{shape}}}"
        if name not in fields:
            key = f"log_{number}"
            fields[key] = formatEvent({**event, "log_format": replacement})
            replacement = f"{{{key}}}"
        format += replacement
    return format


def _format(event: LogEvent) -> str:
    format = event.get("log_format")
    if not isinstance(format, str) or len(format) > LONGEST_TEXT:
        raise TypeError("the event has no format of its own")
    return format


def _shortened(fields: dict[str, Any]) -> dict[str, Any]:
    room = LONGEST_TEXT
    shortened: dict[str, Any] = {}
    for name, value in fields.items():
        shortened[name] = value[:room] if isinstance(value, str) else value
        if isinstance(value, str):
            room -= min(room, len(value))
    return shortened
