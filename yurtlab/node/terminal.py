"""Pseudo-terminals: what ``exec -it`` and containers with ``tty`` run in."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios

_LARGEST = 0xFFFF


class Terminal:
    """A terminal of which the process has the ``far`` end and the node the ``near`` one.

    The near end is owned by whoever reads it, until then by this.
    """

    def __init__(self) -> None:
        self.near, self.far = pty.openpty()

    def take(self) -> None:
        """Make it the terminal of the session: runs in the new process, which leads one.

        From then on Ctrl-C and changes of the size reach the foreground process group.
        """
        fcntl.ioctl(self.far, termios.TIOCSCTTY, 0)

    def resize(self, width: int, height: int) -> None:
        """Set the size in characters; the kernel tells the foreground group by SIGWINCH.

        Sizes that no terminal can have are cut to those that it can.
        """
        columns, rows = (max(0, min(one, _LARGEST)) for one in (width, height))
        fcntl.ioctl(self.near, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def close_far(self) -> None:
        """Close the node's copy of the far end, so that the end of the process shows."""
        os.close(self.far)

    def close(self) -> None:
        """Close the near end."""
        os.close(self.near)
