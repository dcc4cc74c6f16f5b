"""The document about limits agrees with the programs."""

from __future__ import annotations

import re

from twisted.trial import unittest

from tests.deploy.rendering import REPOSITORY
from yurttunnel.cluster import nodes
from yurttunnel.http import accept
from yurttunnel.hub import flag_table, listeners
from yurttunnel.hub.cache import (
    cached_list,
    clients,
    documents,
    events,
    lists,
    objects,
    queue,
    store,
    tokens,
)
from yurttunnel.hub.filters import chain, watches
from yurttunnel.hub.forwarding import caching, forwarding, responses, token_reviews
from yurttunnel.hub.offline import backpressure, writes
from yurttunnel.hub.request import callers, parsing, requests
from yurttunnel.hub.upstream import connections
from yurttunnel.ops.programs import MAX_OUTPUT
from yurttunnel.ops.programs import PROGRAM_TIMEOUT as PROGRAM_SECONDS
from yurttunnel.proxy import health, page, proxier
from yurttunnel.proxy.balancing import ejections, picker
from yurttunnel.proxy.kernel import detection_rules, failure_detector, prober
from yurttunnel.proxy.kernel import ejections as kernel_ejections
from yurttunnel.proxy.sockets import (
    dialing,
    half_closed,
    listener,
    listening,
    pipes,
    relay,
    tcp,
    udp,
    udp_table,
)
from yurttunnel.proxy.sources import manifests
from yurttunnel.proxy.state import parsing as object_parsing
from yurttunnel.server.frontends.passthrough import client_hello
from yurttunnel.server.frontends.passthrough import listener as passthrough
from yurttunnel.steering import probe_schedule
from yurttunnel.steering.desired_state import MAX_ADDRESSES_PER_NODE
from yurttunnel.steering.dns.records import MAX_BYTES
from yurttunnel.steering.manager import CHECK_SECONDS, SYNC_BURST, SYNC_SPACING
from yurttunnel.steering.netlink import ipsets, sock_diag, worker

LIMITS = REPOSITORY / "docs" / "limits.md"
STEERING = REPOSITORY / "docs" / "steering.md"

KIBIBYTE, MEBIBYTE = 1 << 10, 1 << 20


class Limits:
    """A test of a section's table, whose columns are the limit, its value, and what exceeds it."""

    section = ""
    bounds: tuple[tuple[object, ...], ...] = ()
    """The start of each row, and the numbers in its value."""

    def setUp(self):
        """Read the table."""
        text = LIMITS.read_text().partition(f"\n## {self.section}\n")[2].partition("\n## ")[0]
        self.values = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|", text, flags=re.MULTILINE))

    def numbers(self, beginning):
        """Return the numbers of the only row that starts with ``beginning``."""
        (value,) = [value for name, value in self.values.items() if name.startswith(beginning)]
        return [float(each.replace(",", "")) for each in re.findall(r"\d[\d,.]*", value)]

    def test_values_are_those_of_the_code(self):
        """The numbers, times and sizes are those of the code."""
        for beginning, *values in self.bounds:
            self.assertEqual(values, self.numbers(beginning)[: len(values)], beginning)


class SteeringTests(Limits, unittest.SynchronousTestCase):
    """Steering limits."""

    section = "Steering"
    bounds = (
        ("connections to `--passthrough-port`", passthrough.MAX_CONNECTIONS),
        ("of these without a complete ClientHello", passthrough.MAX_UNREAD_HELLOS),
        ("the same from one address", passthrough.MAX_UNREAD_PER_SOURCE),
        ("size of a ClientHello", client_hello.MAX_HELLO / KIBIBYTE),
        ("time for it", passthrough.HELLO_TIMEOUT),
        ("addresses and other names of a node", nodes.MAX_ADDRESSES, nodes.MAX_ADDRESS),
        ("addresses of a node", MAX_ADDRESSES_PER_NODE),
        ("addresses in a set", ipsets.MAX_ADDRESSES),
        ("time for a program", PROGRAM_SECONDS),
        ("time for a program", worker.DEADLINE),
        ("output of a program", MAX_OUTPUT / MEBIBYTE),
        ("syncs of rules and sets", SYNC_BURST, SYNC_SPACING),
        ("between two looks", CHECK_SECONDS),
        ("between two readings", probe_schedule.MIN_PAUSE),
        ("the same where the kernel", probe_schedule.RECHECK_SECONDS),
        ("time for callers to take", sock_diag.DELIVERY_SECONDS),
        ("all DNS records", MAX_BYTES / MEBIBYTE),
    )

    def test_slow_probes_are_rare(self):
        """Both documents have the factor between the duration of a probe and the pause after it."""
        for text in (LIMITS.read_text(), STEERING.read_text()):
            self.assertRegex(text, rf"\b{probe_schedule.PAUSE_FACTOR} times\b")


class ProxyTests(Limits, unittest.SynchronousTestCase):
    """The service proxy's limits."""

    section = "The service proxy"
    bounds = (
        ("TCP connections of one port", tcp.MAX_PER_SERVICE),
        ("clients of one port of a Service that wait", tcp.MAX_DIALING),
        ("clients that wait in the kernel", listening.BACKLOG),
        ("pause where no connection", listener.PAUSE_SECONDS * 1000),
        ("silent endpoints", len(dialing.PLAN), *dialing.PLAN),
        ("endpoints that are tried for one client", dialing.MAX_REFUSALS),
        ("bytes of one direction", relay.READ_BYTES / KIBIBYTE, pipes.PIPE_BYTES / MEBIBYTE),
        ("pipes; those", pipes.MAX_PIPES, pipes.MAX_IDLE),
        (
            "time for which the open direction",
            half_closed.MAX_IDLE_SECONDS,
            half_closed.CHECK_SECONDS,
        ),
        ("clients by UDP of the process", udp_table.MAX_CLIENTS),
        ("clients by UDP of one port", udp_table.MAX_PER_SERVICE),
        ("time for which a client by UDP", udp_table.BEFORE_REPLY, udp_table.AFTER_REPLY),
        ("first datagrams by UDP", udp_table.MAX_BUFFERED / MEBIBYTE),
        ("datagrams to a port", udp._RECEIVE_BUFFER / MEBIBYTE),
        ("clients whose endpoint", picker.MAX_RECORDS),
        (
            "time for which an endpoint",
            *(ejections.FIRST_SECONDS, ejections.MAX_SECONDS),
            *(kernel_ejections.FIRST_SECONDS, kernel_ejections.MAX_SECONDS),
        ),
        ("probes of kernel mode", prober.MAX_PROBES, failure_detector.MAX_SIBLINGS),
        ("file with Services", manifests.MAX_BYTES / MEBIBYTE),
        ("changes of endpoints", health.MAX_TRIGGERED),
        ("time for a sync", proxier.SYNC_SECONDS, PROGRAM_SECONDS),
        ("time to remove rules", proxier.REMOVAL_SECONDS),
        ("problems that are told", object_parsing.MAX_REPORTED, proxier.MAX_REPORTED),
        ("Services on the status page", page.MAX_SHOWN, page.MAX_ENDPOINTS),
    )

    def test_waits(self):
        """The time that a client waits for an endpoint is the sum of the plan."""
        text = LIMITS.read_text()
        self.assertIn(f"each for {sum(dialing.PLAN):g} s at most", text)

    def test_limits_of_kernel_mode(self):
        """The rate limits and the attempts in the text are those of the rules."""
        found = re.findall(
            r"rate (\d+)/second", detection_rules._ENDPOINT_LIMIT + detection_rules._TOTAL_LIMIT
        )
        numbers = [*map(float, found), failure_detector.MAX_ATTEMPTS]
        self.assertEqual(numbers, self.numbers("attempts of clients"))

    def test_descriptors(self):
        """The shares of descriptors for TCP connections and UDP clients are those of the code."""
        self.assertEqual(4, tcp._SHARE)
        self.assertIn("a quarter", self.values["TCP connections of the process"])
        self.assertEqual(udp_table._SHARE, self.numbers("clients by UDP of the process")[1])


class HubTests(Limits, unittest.SynchronousTestCase):
    """The hub's limits."""

    section = "The hub"
    bounds = (
        (
            "requests that are over soon",
            int(flag_table.MAX_REQUESTS.default),
            int(flag_table.MAX_WATCHES.default),
        ),
        (
            "head of a request",
            listeners.SETTINGS.limits.max_bytes / KIBIBYTE,
            listeners.SETTINGS.limits.max_fields,
        ),
        (
            "heads of more than 8 KiB",
            listeners.SETTINGS.max_long_heads / MEBIBYTE,
            listeners.SETTINGS.max_long_heads / MEBIBYTE / 2,
        ),
        ("name in a path", parsing.MAX_SEGMENT_LENGTH, callers.MAX_COMPONENT),
        ("names in a path", parsing.MAX_SEGMENTS),
        ("parameters of a list", parsing.MAX_PARAMETERS),
        ("`Accept`", accept.MAX_ACCEPT / KIBIBYTE),
        ("body of a request that is kept", forwarding.MAX_REPEATABLE_BODY / KIBIBYTE),
        ("body of a request that is answered", writes.MAX_BODY / KIBIBYTE),
        (
            "head of an answer",
            connections.HEAD_LIMITS.max_bytes / KIBIBYTE,
            connections.HEAD_LIMITS.max_fields,
        ),
        ("one object", caching.MAX_ITEM / MEBIBYTE),
        ("document: ", caching.MAX_DOCUMENT / MEBIBYTE),
        ("documents that are kept", documents.MAX_DOCUMENTS, documents.MAX_BYTES / MEBIBYTE),
        (
            "connections to an API server",
            connections.POOL.max_per_key,
            connections.POOL.max_uploads_per_key,
            connections.POOL.max_upgrades_per_key,
        ),
        ("time to connect", connections.CONNECT_SECONDS),
        ("time for an answer", forwarding.RESPONSE_TIMEOUT),
        ("the file of the cache", store.MAX_BYTES / MEBIBYTE / KIBIBYTE),
        (
            "memory for what waits",
            store.MAX_QUEUED / MEBIBYTE,
            store.MAX_QUEUED / 2 / MEBIBYTE,
        ),
        ("selections of one collection", objects.MAX_NAMESPACES, objects.MAX_SCOPES),
        ("selectors of labels", requests.MAX_SELECTORS / KIBIBYTE),
        ("what of a field selector", responses.MAX_VIEW),
        ("collections that are known", store.MAX_USED, queue.MAX_INCOMPLETE),
        ("requests of which it is remembered", chain._REMEMBERED, chain._MAX_REMEMBERED),
        ("lists of which it is remembered", watches.MAX_LISTS),
        ("lists in pages", lists.MAX_LISTS, lists.MAX_NAMES),
        ("time for a next page", lists.PAGE_SECONDS),
        (
            "objects and documents of more than",
            backpressure.MAX_BEING_SENT / MEBIBYTE,
            backpressure.MAX_BEING_SENT / MEBIBYTE / 2,
        ),
        (
            "lists that are read",
            store.MAX_CONCURRENT_READS,
            store.MAX_CONCURRENT_READS,
            store.MAX_CONCURRENT_READS / 2,
        ),
        ("time for reading", cached_list.MAX_AGE, store.MAX_LOG_SIZE / MEBIBYTE),
        ("Events that are kept", events.MAX_EVENTS, events.MAX_BYTES / MEBIBYTE),
        (
            "tokens of which it is kept",
            tokens.MAX_TOKENS,
            token_reviews.ACCEPTED_SECONDS / (24 * clients.HOUR),
        ),
        ("tokens of which it is remembered", token_reviews._MAX_TOKENS),
        ("questions about tokens", token_reviews._MAX_REVIEWS),
        ("time until a client", clients.MAX_IDLE_HOURS),
    )
