"""Messages for operators about the kernel's errors."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.netlink.netlink_socket import NetlinkError

_COMMON_TEXTS = {
    errno.EPERM: "not permitted; give the server the capability NET_ADMIN, as root in the "
    "host's network",
    errno.EPROTONOSUPPORT: "this kernel has no netlink for its firewall; load the module nfnetlink",
    errno.EAFNOSUPPORT: "this kernel has no netlink for its firewall; load the module nfnetlink",
    errno.ETIMEDOUT: "the kernel has not answered in time; is the machine overloaded?",
}


@contextmanager
def as_steering_failed(what: str, texts: Mapping[int, str]) -> Iterator[None]:
    """Raise :class:`SteeringFailed` for errors of the kernel in the block.

    ``what`` says what failed (``cannot read the set X``), and ``texts`` has texts for codes.
    """
    try:
        yield
    except NetlinkError as error:
        code = error.code
        cause: Exception = error
    except TimeoutError as problem:
        code, cause = errno.ETIMEDOUT, problem
    except OSError as problem:
        code, cause = problem.errno or 0, problem
    else:
        return
    text = texts.get(code) or _COMMON_TEXTS.get(code)
    raise SteeringFailed(f"{what}: {text or _unexplained(code)}") from cause


def _unexplained(code: int) -> str:
    if code in errno.errorcode:
        return f"the kernel says {errno.errorcode[code]} ({os.strerror(code)})"
    return f"the kernel says error {code}"
