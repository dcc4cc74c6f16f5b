"""A service that manages a serving certificate of a cluster, for tests."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.pki.signing import SigningApi, issue
from tests.pki.support import Issuer, clock_now
from yurttunnel.pki.certificate_store import DatedStore, open_certificate_directory
from yurttunnel.pki.certificate_template import serving_template
from yurttunnel.pki.cluster_issuer import ClusterIssuer
from yurttunnel.pki.renewal import CertificateRenewal
from yurttunnel.pki.renewal_schedule import CLUSTER_SCHEDULE

LIFE = 3600.0


class RenewalTestCase(SynchronousTestCase):
    """The service for the serving certificate of a cluster."""

    def setUp(self):
        """Create an API that signs at once."""
        self.clock = clock_now()
        self.start = self.clock.seconds()
        self.issuer = Issuer.make(self, self.clock)
        self.api = SigningApi(self.issuer, prompt=True, lifetime=LIFE)
        self.directory = open_certificate_directory(self.mktemp())
        self.template = serving_template(["one.example"])
        self.unknown = None
        self.changes = []
        self.times = []
        create = self.api.create

        def timed(resource, body, namespace=None):
            self.times.append(self.clock.seconds())
            return create(resource, body, namespace)

        self.api.create = timed

    def desired(self):
        """Return the desired template, or raise if it is unknown."""
        if self.unknown is not None:
            raise self.unknown
        return self.template

    def renewal(self, find_problem=None, issuer=None):
        """Start a service with the stored certificate of the previous one."""
        store = DatedStore(self.clock, self.directory, "yurttunnel-server")
        purpose = serving_template()
        renewal = CertificateRenewal(
            self.clock,
            "serving certificate",
            issuer or ClusterIssuer(self.clock, self.api, purpose.signer, purpose.usages),
            store,
            CLUSTER_SCHEDULE,
            self.desired,
            find_problem or purpose.problem,
            (self.issuer.authority.certificate,),
        )
        renewal.on_change.append(self.changes.append)
        renewal.startService()
        self.addCleanup(self.stop, renewal)
        return renewal

    def stop(self, renewal):
        """Stop the service, unless it is stopped already."""
        if renewal.running:
            renewal.stopService()

    def store(self, template, issuer=None, lifetime=LIFE):
        """Store a certificate as from an earlier run."""
        issued = issue(issuer or self.issuer, template, lifetime)
        DatedStore(self.clock, self.directory, "yurttunnel-server").save(issued)
        return issued.certificate

    def pass_time(self, seconds):
        """Advance the clock by seconds."""
        self.clock.pump([1.0] * int(seconds))

    @property
    def requests(self):
        """The number of requests so far."""
        return len(self.api.created)
