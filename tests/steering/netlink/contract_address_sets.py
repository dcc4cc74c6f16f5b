"""What sets of addresses promise; the fake is held to it, and the kernel's."""

from __future__ import annotations

from ipaddress import ip_address

from yurttunnel.steering.failures import SteeringFailed

NAME = "YURTTUNNEL-EDGE4"
NAME_6 = "YURTTUNNEL-EDGE6"


def some(*texts):
    """Make addresses."""
    return frozenset(ip_address(text) for text in texts)


def many(first, count):
    """Make addresses, one after the other."""
    return frozenset(ip_address(first) + number for number in range(count))


class AddressSetsContract:
    """Tests; a test case has ``sets``, and the methods below that raise."""

    def content(self, name):
        """Return the addresses in a set, ``None`` where there is none."""
        raise NotImplementedError

    def refer_to(self, name):
        """Have a firewall rule refer to a set."""
        raise NotImplementedError

    def put(self, addresses, name=NAME, version=4):
        """Put, at once."""
        return self.successResultOf(self.sets.put(name, version, addresses))

    def remove(self, name=NAME):
        """Remove, at once."""
        return self.successResultOf(self.sets.remove(name))

    def test_it_is_supported(self):
        """There are sets."""
        self.assertTrue(self.successResultOf(self.sets.supported()))

    def test_a_new_set(self):
        """A set that was not there is made with its addresses."""
        desired = some("10.0.0.1", "192.168.7.255")
        self.assertIsNone(self.content(NAME))
        self.assertTrue(self.put(desired))
        self.assertEqual(desired, self.content(NAME))

    def test_an_empty_set(self):
        """A set is there that has no addresses."""
        self.assertTrue(self.put(()))
        self.assertEqual(frozenset(), self.content(NAME))
        self.assertFalse(self.put(()))

    def test_unchanged(self):
        """Nothing is changed where all is as it should be."""
        self.put(many("10.0.0.1", 3000))
        self.assertFalse(self.put(many("10.0.0.1", 3000)))

    def test_other_addresses(self):
        """Some come and others go, and the rest stays."""
        self.put(many("10.0.0.1", 300))
        self.assertTrue(self.put(many("10.0.0.100", 300)))
        self.assertEqual(many("10.0.0.100", 300), self.content(NAME))

    def test_thousands(self):
        """There are more addresses than fit into one message, in both directions."""
        for name, version, first in ((NAME, 4, "10.0.0.1"), (NAME_6, 6, "fd00::1")):
            desired = many(first, 5000)
            self.assertTrue(self.put(desired, name, version))
            self.assertEqual(desired, self.content(name))
            self.assertTrue(self.put((), name, version))
            self.assertEqual(frozenset(), self.content(name))

    def test_both_families(self):
        """Sets of the two families do not disturb each other."""
        self.put(some("10.0.0.1"))
        self.assertTrue(self.put(some("fd00::1", "2001:db8::7"), NAME_6, 6))
        self.assertFalse(self.put(some("10.0.0.1")))
        self.assertFalse(self.put(some("fd00::1", "2001:db8::7"), NAME_6, 6))
        self.assertEqual(some("fd00::1", "2001:db8::7"), self.content(NAME_6))

    def test_removal(self):
        """It says whether there was a set; others stay."""
        self.put(some("10.0.0.1"))
        self.put(some("fd00::1"), NAME_6, 6)
        self.assertTrue(self.remove())
        self.assertIsNone(self.content(NAME))
        self.assertFalse(self.remove())
        self.assertEqual(some("fd00::1"), self.content(NAME_6))

    def test_removal_while_rules_refer_to_it(self):
        """That is refused, and the set stays as it is."""
        self.put(some("10.0.0.1"))
        self.refer_to(NAME)
        removal = self.sets.remove(NAME)
        self.let_time_pass()
        failure = self.failureResultOf(removal, SteeringFailed)
        self.assertIn(NAME, str(failure.value))
        self.assertIn("rules still refer to it", str(failure.value))
        self.assertEqual(some("10.0.0.1"), self.content(NAME))

    def test_change_while_rules_refer_to_it(self):
        """That is what a set is for."""
        self.put(some("10.0.0.1"))
        self.refer_to(NAME)
        self.assertTrue(self.put(some("10.0.0.2")))
        self.assertEqual(some("10.0.0.2"), self.content(NAME))

    def let_time_pass(self):
        """Let those who wait find that nothing has changed."""
