"""The node's ends of a process's pipes and terminal, for the reactor."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios
from collections.abc import Callable

from twisted.internet.abstract import FileDescriptor
from twisted.internet.interfaces import IReactorFDSet
from twisted.internet.main import CONNECTION_DONE, CONNECTION_LOST
from twisted.python.failure import Failure

# The capacity of a pipe in Linux: one read empties it.
_READ_BYTES = 64 * 1024


class Descriptor(FileDescriptor):
    """A pipe or a terminal; it owns the descriptor ``number`` and closes it.

    ``received(data)`` gets what is read; ``ended()`` is called once, when the other end is closed
    or after ``loseConnection``. Writing never fails: data without a reader is dropped. It
    buffers what is written, and pauses a registered producer above 64 KiB.
    """

    connected = 1

    def __init__(
        self,
        reactor: IReactorFDSet,
        number: int,
        received: Callable[[bytes], object] = lambda data: None,
        ended: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(reactor)
        os.set_blocking(number, False)
        self._number = number
        self._received = received
        self._ended = ended

    def fileno(self) -> int:
        """Return the number for the reactor; -1 once it is closed."""
        return self._number

    def doRead(self) -> Exception | None:
        try:
            data = os.read(self._number, _READ_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            # A terminal returns EIO when no process has it open any longer.
            return CONNECTION_LOST
        if not data:
            return CONNECTION_DONE
        self._received(data)
        return None

    def writeSomeData(self, data: bytes) -> int | BaseException:
        try:
            return os.write(self._number, data)
        except BlockingIOError:
            return 0
        except OSError:
            return CONNECTION_LOST

    def connectionLost(self, reason: Failure) -> None:
        if self._number < 0:
            return
        # The reactor removes a descriptor by its number: first that, then close it.
        super().connectionLost(reason)
        number, self._number = self._number, -1
        os.close(number)
        self._ended()

    def close(self) -> None:
        """Close it at once, and drop unread and unwritten data."""
        self.connectionLost(Failure(CONNECTION_DONE))


_MAX_SIZE = 0xFFFF


class Terminal:
    """A terminal: the process has its ``far`` end, and the node the ``near`` one.

    The near end is owned by its reader, and until then by this object.
    """

    def __init__(self) -> None:
        self.near, self.far = pty.openpty()

    def take(self) -> None:
        """Make it the session's controlling terminal; runs in the new process, a session leader.

        From then on Ctrl-C and changes of the size reach the foreground process group.
        """
        fcntl.ioctl(self.far, termios.TIOCSCTTY, 0)

    def resize(self, width: int, height: int) -> None:
        """Set the size in characters; the kernel notifies the foreground group by SIGWINCH.

        Sizes beyond what a terminal supports are clamped.
        """
        columns, rows = (max(0, min(one, _MAX_SIZE)) for one in (width, height))
        fcntl.ioctl(self.near, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def close_far(self) -> None:
        """Close the node's copy of the far end, so that the end of the process is noticed."""
        os.close(self.far)

    def close(self) -> None:
        """Close the near end."""
        os.close(self.near)
