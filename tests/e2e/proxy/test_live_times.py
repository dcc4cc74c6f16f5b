"""Tests of a ``--config`` file whose timeouts change while the proxy runs."""

from __future__ import annotations

import signal

from tests.e2e.configuration_file import ConfigurationFile
from tests.e2e.proxy.objects import port
from tests.e2e.proxy.support import REMOTE, ProxyTestCase

FLAGS = ("drain-timeout", "udp-timeout", "udp-first-timeout")
LONG, SHORT = ("".join(f'{flag} = "{time}"\n' for flag in FLAGS) for time in ("60s", "1s"))

SOON = 15.0
"""Seconds within which an event of one second is over on a busy machine."""


class LiveTimesTests(ProxyTestCase):
    """Changes apply without a restart."""

    async def test_times(self) -> None:
        """The resources of a UDP client are released after the new timeout, and a proxy that ends
        waits that long for its connections.
        """
        file = ConfigurationFile(self.directory)
        file.write(LONG)
        self.serve(*REMOTE)
        await self.start_cloud()
        self.objects.service("web", port(80), port(53, "UDP", "dns"))
        self.objects.endpoints("web", *REMOTE)
        proxy = self.make_proxy(*file.flags)
        # A flag takes precedence over the file.
        at = proxy.arguments.index("--drain-timeout")
        del proxy.arguments[at : at + 2]
        proxy.start()
        await proxy.ready()
        host = self.objects.address("web", 4)
        await self.eventually_by(REMOTE, host)
        before = len(proxy.descriptors())
        caller = self.dial(host, keeps_open=True)
        await caller.greeted
        descriptors_before = len(proxy.descriptors())
        self.assertEqual((await self.ask(host)).problem, "")
        self.assertGreater(len(proxy.descriptors()), descriptors_before)
        await file.use(self, proxy, SHORT, *FLAGS)
        await self.eventually(
            lambda: len(proxy.descriptors()) <= descriptors_before, "its socket is given back", SOON
        )
        self.assertGreater(descriptors_before, before)
        proxy.signal(signal.SIGTERM)
        await proxy.ended(SOON)
        self.assertNotEqual((await caller.answered).problem, "")
