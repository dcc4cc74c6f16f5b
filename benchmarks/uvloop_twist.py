"""``twist`` on asyncio's reactor and the event loop of uvloop, which no option of it can choose.

A program by itself, which ``--reactor uvloop`` starts in the place of ``twist``.
"""

import runpy

import uvloop
from twisted.internet import asyncioreactor


def main() -> None:
    """Install the reactor, then be ``twist``."""
    asyncioreactor.install(uvloop.new_event_loop())
    runpy.run_module("twisted", run_name="__main__")


if __name__ == "__main__":
    main()
