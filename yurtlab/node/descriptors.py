"""The near ends of a process's pipes and of its terminal, as the reactor reads and writes them."""

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

# What a pipe of Linux holds: one read empties it.
_READ_BYTES = 64 * 1024


class Descriptor(FileDescriptor):
    """A pipe or a terminal; it owns ``number`` and closes it.

    ``received(data)`` gets what is read, ``ended()`` is called once, when the far end has closed
    it or after ``loseConnection``. Writing never fails: what nobody takes any more is dropped. It
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
        """Return the number for the reactor; -1 after the end."""
        return self._number

    def doRead(self) -> Exception | None:
        try:
            data = os.read(self._number, _READ_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            # EIO is how a terminal says that no process has it open any longer.
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
        # The reactor forgets a descriptor by its number: first this, then closing it.
        super().connectionLost(reason)
        number, self._number = self._number, -1
        os.close(number)
        self._ended()

    def close(self) -> None:
        """Close it at once, dropping what has not been read or written."""
        self.connectionLost(Failure(CONNECTION_DONE))


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
