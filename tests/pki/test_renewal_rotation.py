"""Replacement of the certificate in use."""

from __future__ import annotations

from dataclasses import replace

from tests.pki.renewal_support import LIFE, RenewalTestCase
from yurttunnel.ops.clocks import utc_now
from yurttunnel.pki.certificate_store import open_certificate_directory
from yurttunnel.pki.certificate_template import serving_template
from yurttunnel.pki.desired_template import SETTLE_TIME


class RotationTests(RenewalTestCase):
    """Replacement of the certificate in use."""

    def test_in_time(self):
        """A new certificate is requested after 70 to 90 % of its lifetime."""
        renewal = self.renewal()
        first = renewal.current
        self.pass_time(LIFE * 0.7 - 2)
        self.assertEqual(self.requests, 1)
        self.pass_time(LIFE * 0.2 + 4)
        self.assertEqual(self.requests, 2)
        self.assertEqual(self.changes, [first, renewal.current])
        self.assertEqual((renewal.problem(), renewal.warning()), (None, None))

    def test_stored_in_time(self):
        """The lifetime of a stored certificate counts from its own beginning."""
        self.store(self.template)
        self.pass_time(LIFE * 0.85)
        renewal = self.renewal()
        self.pass_time(LIFE * 0.1)
        self.assertEqual(self.requests, 1)
        self.assertGreater((renewal.not_after - utc_now(self.clock)).total_seconds(), LIFE * 0.8)

    def test_spread(self):
        """Replicas do not all renew at the same moment."""
        times = set()
        for _ in range(20):
            self.directory = open_certificate_directory(self.mktemp())
            times.add(self.renewal()._holder.current.renewal_at)
        self.assertEqual(len(times), 20)

    def test_short_lives(self):
        """Certificates with a shorter life than the backdating are not renewed all the time."""
        self.api.lifetime = 30.0
        renewal = self.renewal()
        for _ in range(10):
            self.pass_time(30)
            self.assertTrue(renewal.is_usable)
        self.assertLessEqual(self.requests, 16)

    def test_missing_name(self):
        """A missing name causes a new request, as soon as the names have settled."""
        renewal = self.renewal()
        self.template = serving_template(["one.example", "two.example"])
        self.pass_time(SETTLE_TIME - 1)
        self.assertEqual(self.requests, 1)
        self.pass_time(3)
        self.assertEqual(self.requests, 2)
        self.assertIsNone(self.template.problem(renewal.current.certificate))

    def test_burst(self):
        """A burst of changes causes one request."""
        self.renewal()
        for number in range(10):
            self.template = serving_template([f"{each}.example" for each in range(number)])
            self.pass_time(2)
        self.pass_time(60)
        self.assertEqual(self.requests, 2)

    def test_fewer_names(self):
        """A name that is no longer needed, or another order, causes no request."""
        self.template = serving_template(["one.example", "two.example"])
        self.renewal()
        self.template = serving_template(["one.example"])
        self.pass_time(60)
        self.template = replace(self.template, dns_names=("two.example", "one.example"))
        self.pass_time(60)
        self.assertEqual(self.requests, 1)

    def test_names_that_keep_changing(self):
        """Names that never settle do not prevent the renewal."""
        renewal = self.renewal()
        for number in range(int(LIFE)):
            self.template = serving_template(["one.example", f"{number}.example"])
            self.pass_time(1)
        self.assertEqual(self.requests, 2)
        self.assertTrue(renewal.is_usable)

    def test_names_change_while_waiting(self):
        """A pending request that lacks a desired name is replaced."""
        self.api.prompt = False
        renewal = self.renewal()
        self.pass_time(60)
        self.template = serving_template(["two.example"])
        self.pass_time(SETTLE_TIME + 3)
        self.assertEqual(self.requests, 2)
        self.assertEqual(self.api.names("csr-1"), ["two.example"])
        self.api.sign("csr-0")
        self.pass_time(30)
        self.assertIsNone(renewal.current)
        self.api.sign("csr-1")
        self.pass_time(10)
        self.assertIsNone(self.template.problem(renewal.current.certificate))
        self.assertEqual((renewal.counters.issued, renewal.counters.failed), (1, 0))

    def test_burst_while_waiting(self):
        """A burst of changes replaces a pending request once, after its end."""
        self.api.prompt = False
        self.renewal()
        for number in range(10):
            self.template = serving_template([f"{number}.example"])
            self.pass_time(2)
        self.assertEqual(self.requests, 1)
        self.pass_time(10)
        self.assertEqual(self.requests, 2)
        self.assertEqual(self.api.names("csr-1"), ["9.example"])

    def test_shuffled_names(self):
        """Names that only change their order are settled."""
        self.renewal()
        names = ["one.example", "two.example"]
        for _ in range(10):
            names.reverse()
            self.template = replace(self.template, dns_names=tuple(names))
            self.pass_time(1)
        self.assertEqual(self.requests, 2)

    def test_fewer_names_while_waiting(self):
        """A pending request with more names than needed continues."""
        self.api.prompt = False
        self.template = serving_template(["one.example", "two.example"])
        self.renewal()
        self.template = serving_template(["one.example"])
        self.pass_time(60)
        self.assertEqual(self.requests, 1)

    def test_refused(self):
        """A rejected certificate is replaced with backoff; ``retry_now`` retries at once."""
        self.api.lifetime = 86400.0
        renewal = self.renewal()
        renewal.on_change.append(lambda issued: renewal.set_rejected(True))
        renewal.set_rejected(True)
        self.pass_time(50)
        self.assertEqual(self.requests, 1)
        self.pass_time(3600)
        self.assertEqual(self.requests, 7)
        renewal.retry_now()
        self.pass_time(10)
        self.assertEqual(self.requests, 8)
        renewal.set_rejected(False)
        renewal.retry_now()
        self.pass_time(3600)
        self.assertEqual(self.requests, 8)

    def test_callback_that_fails(self):
        """An exception of one callback does not affect the others."""
        renewal = self.renewal()

        def broken(issued):
            raise ZeroDivisionError

        renewal.on_change.insert(0, broken)
        self.template = serving_template(["two.example"])
        self.pass_time(10)
        self.assertEqual(self.changes[-1], renewal.current)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
