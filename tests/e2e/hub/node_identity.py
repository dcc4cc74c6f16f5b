"""Certificates for hubs: those of a hub that has joined, and the signer of new ones."""

from __future__ import annotations

import base64
import datetime
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509

from tests.apiserver.kinds import CERTIFICATE_SIGNING_REQUESTS
from tests.apiserver.signing import check_request
from tests.e2e.cluster.identities import Identities
from yurtlab.api.store import ADDED, Event, Store
from yurttunnel.ops.clocks import utc_now
from yurttunnel.pki.certificate_store import DatedStore
from yurttunnel.pki.certificate_template import (
    HUB_PREFIX,
    HUB_SERVER_PREFIX,
    hub_client_template,
    hub_serving_template,
)
from yurttunnel.pki.credentials import certificates_to_pem, new_key
from yurttunnel.pki.directory import StateDirectory
from yurttunnel.pki.issuer import CertificateTemplate, IssuedCertificate

DAY = 86400.0


class HubSigner:
    """Approves and signs all certificate requests in ``store`` at once.

    Certificates are valid for ``seconds``. ``signed`` has the subjects of all, and ``waits`` pauses
    the signer.
    """

    def __init__(self, reactor, identities: Identities, store: Store) -> None:
        self.seconds = DAY
        self.signed: list[str] = []
        self.waits = False
        self._reactor = reactor
        self._authority = identities.signing_authority()
        self._store = store
        self._unfollow = store.follow(CERTIFICATE_SIGNING_REQUESTS, self._changed)

    def stop(self) -> None:
        """Stop signing."""
        self._unfollow()

    def certificate(self, pem: bytes, usages: list[str], signer: str) -> x509.Certificate:
        """Sign a request; raise ``NotSigned``."""
        request = x509.load_pem_x509_csr(pem)
        check_request(signer, request, usages)
        span = datetime.timedelta(seconds=self.seconds)
        return self._authority.sign(request, usages, span, utc_now(self._reactor))

    def _changed(self, event: Event) -> None:
        if event.type != ADDED or self.waits:
            return
        spec = event.object["spec"]
        made = self.certificate(
            base64.b64decode(spec["request"]), list(spec["usages"]), spec["signerName"]
        )
        self.signed.append(made.subject.rfc4514_string())
        now = utc_now(self._reactor).strftime("%Y-%m-%dT%H:%M:%SZ")
        approved = {"type": "Approved", "status": "True", "reason": "Test", "message": "by a test"}
        status = {
            "conditions": [{**approved, "lastUpdateTime": now, "lastTransitionTime": now}],
            "certificate": base64.b64encode(certificates_to_pem([made])).decode("ascii"),
        }
        name = event.object["metadata"]["name"]
        self._store.update_status(CERTIFICATE_SIGNING_REQUESTS, None, name, status)


def join(reactor, signer: HubSigner, identities: Identities, root: Path, node: str) -> None:
    """Create the files of a hub that has joined in its directory."""
    root.mkdir(0o700, parents=True, exist_ok=True)
    directory = StateDirectory.open(root / "pki")
    directory.write("ca.crt", identities.ca_path.read_bytes())
    addresses = [ip_address("127.0.0.1"), ip_address("169.254.2.1")]
    templates: tuple[tuple[str, CertificateTemplate], ...] = (
        (HUB_PREFIX, hub_client_template(node)),
        (HUB_SERVER_PREFIX, hub_serving_template(node, addresses)),
    )
    for prefix, template in templates:
        key = new_key()
        made = signer.certificate(template.request(key), template.usages, template.signer)
        DatedStore(reactor, directory, prefix).save(IssuedCertificate(key, made))
