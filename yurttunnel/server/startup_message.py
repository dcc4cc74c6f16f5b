"""The message of a server without a cluster once it is ready: its URL, and how to add a node."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from twisted.logger import Logger

from yurttunnel.pki.directory import StateError
from yurttunnel.pki.join_token import JoinTokenFile
from yurttunnel.pki.token import JOIN_TOKEN_FILE
from yurttunnel.server.join_command import (
    agent_command,
    command_with_token,
    private_address_warning,
)
from yurttunnel.server.options import Settings

_log = Logger()


def print_startup_message(
    settings: Settings,
    state_dir: Path,
    status_page: str,
    token: JoinTokenFile,
    terminal: TextIO | None,
) -> None:
    """Print the message on the terminal, with the join token; without one, log it with the file.

    Logs are stored and passed on, so they must not contain secrets.
    """
    file = state_dir.absolute() / JOIN_TOKEN_FILE
    warning = private_address_warning(settings)
    if terminal is None:
        _log.info(
            "ready; status page: {page}; join token: {file}; with a copy of that file on a node:"
            " {command}{doubt}",
            page=status_page,
            file=str(file),
            command=agent_command(settings, JOIN_TOKEN_FILE),
            doubt=warning and f"; {warning}",
        )
        return
    try:
        held = token.read()
    except StateError as error:
        _log.warn("the join token cannot be shown: {error}", error=error)
        return
    if held is None:
        # The next check recreates it.
        return
    command = command_with_token(settings, str(held))
    print(_text(status_page, file, command, warning), file=terminal, flush=True)


def _text(status_page: str, file: Path, command: str, warning: str) -> str:
    shown = f"  {command}\n\n{warning}".rstrip()
    return f"""
The server is ready. Its status page is {status_page}

To add a node, run this on it. Whoever has the token in it can add one:

{shown}

The token is in {file}, too; the server replaces it in time. In another terminal:

  yurttunnel nodes                             which nodes are connected
  yurttunnel forward add 9000=NODE/NODE:80     have port 9000 here lead to port 80 of one
  yurttunnel token create                      another token
"""
