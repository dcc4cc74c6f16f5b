"""The description of the allowed destinations for the status page."""

from __future__ import annotations

from ipaddress import ip_address

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.agent.policy import DestinationPolicy, parse_pattern


class DescriptionTests(SynchronousTestCase):
    """The lines."""

    def test_patterns_are_written_as_they_are_read(self) -> None:
        """A pattern is shown as a value of the flag with the same meaning."""
        for text in (
            "10.0.0.0/8", "10.0.0.0/8:443", "192.0.2.1", "192.0.2.1:8000-8100", "fd00::/8",
            "[fd00::1]:443", "fd00::1", "db.example.org:5432", "*.example.org", "*.example.org:1-9",
            "[fd00::/8]:22",
        ):  # fmt: skip
            pattern = parse_pattern(text)
            self.assertEqual(text, str(pattern))
            self.assertEqual(pattern, parse_pattern(str(pattern)))

    def test_by_default(self) -> None:
        """The node's own addresses, and loopback on some ports; then the flag's patterns."""
        policy = DestinationPolicy(
            "edge-1", [ip_address("10.0.0.5")], [parse_pattern("10.1.0.0/16")]
        )
        self.assertEqual(
            [
                "10.0.0.5, every port: the node's own",
                "loopback, ports 10250, 10255, 10266, 10267: the kubelet and the localhost proxies",
                "10.1.0.0/16: by --allow-destination",
            ],
            policy.describe(),
        )

    def test_without_the_default(self) -> None:
        """Only allowed destinations are listed."""
        patterns = [parse_pattern("192.0.2.1:80")]
        policy = DestinationPolicy("edge-1", [ip_address("10.0.0.5")], patterns, False)
        self.assertEqual(["192.0.2.1:80: by --allow-destination"], policy.describe())

    def test_the_meta_port(self) -> None:
        """The meta port is not part of the node's own destinations."""
        policy = DestinationPolicy("edge-1", [ip_address("10.0.0.5")], meta_port=10266)
        self.assertEqual(
            [
                "10.0.0.5, every port: the node's own",
                "loopback, ports 10250, 10255, 10267: the kubelet and the localhost proxies",
                "not port 10266 here, the agent's own, unless a line names it",
            ],
            policy.describe(),
        )
