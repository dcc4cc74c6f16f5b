"""The contract of sets of addresses, for the fake and for the kernel's."""

from __future__ import annotations

from ipaddress import ip_address

from yurttunnel.steering.failures import SteeringFailed

NAME = "YURTTUNNEL-EDGE4"
NAME_6 = "YURTTUNNEL-EDGE6"


def some(*texts):
    """Make addresses."""
    return frozenset(ip_address(text) for text in texts)


def many(first, count):
    """Make consecutive addresses."""
    return frozenset(ip_address(first) + number for number in range(count))


class AddressSetsContract:
    """Tests; a test case has ``sets``, and overrides the methods below that raise."""

    def content(self, name):
        """Return the addresses in a set, ``None`` if it does not exist."""
        raise NotImplementedError

    def refer_to(self, name):
        """Make a firewall rule that refers to a set."""
        raise NotImplementedError

    def put(self, addresses, name=NAME, version=4):
        """Put, at once."""
        return self.successResultOf(self.sets.put(name, version, addresses))

    def remove(self, name=NAME):
        """Remove, at once."""
        return self.successResultOf(self.sets.remove(name))

    def test_it_is_supported(self):
        """Sets are supported."""
        self.assertTrue(self.successResultOf(self.sets.supported()))

    def test_a_new_set(self):
        """A missing set is created with its addresses."""
        desired = some("10.0.0.1", "192.168.7.255")
        self.assertIsNone(self.content(NAME))
        self.assertTrue(self.put(desired))
        self.assertEqual(desired, self.content(NAME))

    def test_an_empty_set(self):
        """A set may have no addresses."""
        self.assertTrue(self.put(()))
        self.assertEqual(frozenset(), self.content(NAME))
        self.assertFalse(self.put(()))

    def test_unchanged(self):
        """Nothing is changed if everything is as desired."""
        self.put(many("10.0.0.1", 3000))
        self.assertFalse(self.put(many("10.0.0.1", 3000)))

    def test_other_addresses(self):
        """Some are added and others removed, and the rest stays."""
        self.put(many("10.0.0.1", 300))
        self.assertTrue(self.put(many("10.0.0.100", 300)))
        self.assertEqual(many("10.0.0.100", 300), self.content(NAME))

    def test_thousands(self):
        """There may be more addresses than fit into one message, in both directions."""
        for name, version, first in ((NAME, 4, "10.0.0.1"), (NAME_6, 6, "fd00::1")):
            desired = many(first, 5000)
            self.assertTrue(self.put(desired, name, version))
            self.assertEqual(desired, self.content(name))
            self.assertTrue(self.put((), name, version))
            self.assertEqual(frozenset(), self.content(name))

    def test_both_families(self):
        """Sets of the two families are independent."""
        self.put(some("10.0.0.1"))
        self.assertTrue(self.put(some("fd00::1", "2001:db8::7"), NAME_6, 6))
        self.assertFalse(self.put(some("10.0.0.1")))
        self.assertFalse(self.put(some("fd00::1", "2001:db8::7"), NAME_6, 6))
        self.assertEqual(some("fd00::1", "2001:db8::7"), self.content(NAME_6))

    def test_removal(self):
        """The result is whether there was a set; others stay."""
        self.put(some("10.0.0.1"))
        self.put(some("fd00::1"), NAME_6, 6)
        self.assertTrue(self.remove())
        self.assertIsNone(self.content(NAME))
        self.assertFalse(self.remove())
        self.assertEqual(some("fd00::1"), self.content(NAME_6))

    def test_removal_while_rules_refer_to_it(self):
        """It fails, and the set stays as it is."""
        self.put(some("10.0.0.1"))
        self.refer_to(NAME)
        removal = self.sets.remove(NAME)
        self.let_time_pass()
        failure = self.failureResultOf(removal, SteeringFailed)
        self.assertIn(NAME, str(failure.value))
        self.assertIn("rules still refer to it", str(failure.value))
        self.assertEqual(some("10.0.0.1"), self.content(NAME))

    def test_change_while_rules_refer_to_it(self):
        """This is the purpose of sets."""
        self.put(some("10.0.0.1"))
        self.refer_to(NAME)
        self.assertTrue(self.put(some("10.0.0.2")))
        self.assertEqual(some("10.0.0.2"), self.content(NAME))

    def let_time_pass(self):
        """Let retries find that nothing has changed."""
