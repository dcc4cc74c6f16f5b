"""The server's decision whether a node gets a certificate."""

from __future__ import annotations

import dataclasses
import secrets

from cryptography import x509
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from yurttunnel.ops.bounded_dict import BoundedDict
from yurttunnel.ops.clocks import utc_now
from yurttunnel.pki.authority import (
    DEFAULT_NODE_LIFETIME,
    Authority,
    AuthorityExpired,
    BadRequest,
    PublicKey,
    key_of_request,
)
from yurttunnel.pki.credentials import certificates_to_pem, pin_of
from yurttunnel.pki.enrolment_messages import (
    EnrolmentRefused,
    EnrolmentRequest,
    EnrolmentResponse,
    Refusal,
)
from yurttunnel.pki.identity import (
    MAX_IDENTIFIERS,
    BadIdentifiers,
    Identifiers,
    NodeIdentity,
    identity_from_certificate,
    parse_identifiers,
    uncovered_identifiers,
)
from yurttunnel.pki.names import CALLER_NAME, KUBELET_CLIENT_NAME, BadIdentity, check_node_name
from yurttunnel.pki.ownership import Ownership
from yurttunnel.pki.records import NodeRecord, NodeRecords
from yurttunnel.pki.revocation import Revocations
from yurttunnel.pki.token import IssuedToken, TokenRefused, TokenStore

MAX_TOKEN_FAILURES = 10
"""The number of wrong tokens from an address in :data:`FAILURE_WINDOW` before rate limiting.

Further failures are answered with ``RATE_LIMITED``. A valid token is never limited, since many
nodes may share an address.
"""
FAILURE_WINDOW = 60.0
"""Seconds."""
_MAX_ADDRESSES = 1024
"""The maximum number of addresses whose failures are remembered."""


# A kubelet that trusts the authority may identify callers only by their common name.
_CALLER_NAMES = frozenset({CALLER_NAME, KUBELET_CLIENT_NAME})


class Admission:
    """Decides on enrolments and renewals, and has the authority sign the certificates.

    - A join token enrolls any number of nodes, but each name once. A name that is enrolled is
      enrolled again only if it has been revoked and the token is newer than the revocation, or if
      the request uses the key of the node's current certificate: the certificate has expired, or
      the server's last response was lost.
    - A node cannot have a name of another node, nor an address of another node as a name. Nodes may
      share addresses, since private addresses recur on many sites; a call to a shared address is
      rejected with the names of the nodes. Nodes may also share networks and the default route,
      which are used for destinations that no node owns. A network of one address counts as that
      address.
    - A renewal is for the same node and for at most the identifiers of the certificate that it
      presents, none of which may belong to another node by now.

    ``lifetime`` of the certificates is in seconds.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        authority: Authority,
        tokens: TokenStore,
        records: NodeRecords,
        revocations: Revocations,
        ownership: Ownership,
        lifetime: float = DEFAULT_NODE_LIFETIME,
    ) -> None:
        self._clock = clock
        self._authority = authority
        self._tokens = tokens
        self._records = records
        self._revocations = revocations
        self._ownership = ownership
        self._lifetime = lifetime
        self._failures = _FailureLimit(clock)
        self._closed = False

    def close(self) -> None:
        """Reject all further requests, because another process may use the state from now on."""
        self._closed = True

    def decide(
        self, request: EnrolmentRequest, presented: x509.Certificate | None, address: str
    ) -> EnrolmentResponse:
        """Return the response to ``request``; raises :class:`EnrolmentRefused` and ``StateError``.

        ``presented`` is the verified client certificate of the connection, and ``address`` its
        source address.
        """
        if self._closed:
            raise EnrolmentRefused(Refusal.UNAVAILABLE, "this server is stopping: try again")
        self._revocations.refresh()
        # Authenticate before parsing: unauthenticated requests cost no parsing and no public-key
        # operation.
        if request.token_id:
            token = self._check_token(request, address)
            node, identifiers, key = _parse_request(request)
            record = self._enroll(node, identifiers, pin_of(key), token)
        elif presented is not None:
            identity, known = self._check_certificate(presented)
            node, identifiers, key = _parse_request(request)
            keys = (pin_of(key), pin_of(presented))
            record = self._renew(node, identifiers, keys, identity, known)
        else:
            raise _not_authorized("neither a join token nor a certificate was presented")
        response = self._sign(record, identifiers, key)
        self._log.info(
            "{what} node {node} for {address}, with the {kind} {by}",
            what="enrolled" if request.token_id else "renewed the certificate of",
            node=node,
            address=address,
            kind="join token" if request.token_id else "enrolment",
            by=request.token_id or record.enrolment,
        )
        return response

    def _check_token(self, request: EnrolmentRequest, address: str) -> IssuedToken:
        try:
            return self._tokens.check(request.token_id, request.token_secret)
        except TokenRefused as error:
            self._failures.add(address)
            self._failures.check(address)
            code = Refusal.TOKEN_EXPIRED if error.expired else Refusal.BAD_TOKEN
            raise EnrolmentRefused(code, str(error)) from None

    def _enroll(
        self, node: str, identifiers: Identifiers, key_pin: str, token: IssuedToken
    ) -> NodeRecord:
        self._check_claims(node, identifiers)
        known = self._records.get(node)
        if known is None or self._revocations.is_record_revoked(known):
            revoked = self._revocations.revoked_at(node)
            if revoked is not None and token.created <= revoked:
                raise EnrolmentRefused(
                    Refusal.TOKEN_EXPIRED,
                    f"the join token is older than the revocation of node {node}:"
                    " use the server's current one",
                )
            return NodeRecord(
                node,
                Identifiers(frozenset({node})),
                _new_enrolment(),
                (key_pin,),
                utc_now(self._clock),
                token_created=token.created,
            )
        if key_pin in known.keys:
            return dataclasses.replace(known, keys=(key_pin,))
        raise EnrolmentRefused(
            Refusal.ALREADY_ENROLLED,
            f"node {node} is enrolled already: give this node another name, use the state"
            f" directory it was enrolled with, or revoke {node} on the server",
        )

    def _check_certificate(self, presented: x509.Certificate) -> tuple[NodeIdentity, NodeRecord]:
        try:
            identity = identity_from_certificate(presented)
        except BadIdentity as error:
            raise _not_authorized(str(error)) from None
        node = identity.node
        if self._revocations.is_revoked(identity):
            raise EnrolmentRefused(Refusal.REVOKED, f"node {node} has been revoked")
        if utc_now(self._clock) >= identity.not_after:
            raise _not_authorized(f"the certificate of {node} has expired")
        known = self._records.get(node)
        if known is None or known.enrolment != identity.enrolment:
            raise _not_authorized(f"node {node} was not enrolled here with this certificate")
        return identity, known

    def _renew(
        self,
        node: str,
        identifiers: Identifiers,
        keys: tuple[str, str],
        identity: NodeIdentity,
        known: NodeRecord,
    ) -> NodeRecord:
        if identity.node != node:
            raise _not_authorized(f"the certificate is that of {identity.node}, not {node}")
        missing = uncovered_identifiers(identity, identifiers)
        if missing:
            raise _not_authorized(
                f"the certificate of {node} does not cover {', '.join(missing)}:"
                " enroll again with a join token"
            )
        self._check_claims(node, identifiers)
        return dataclasses.replace(known, keys=keys)

    def _check_claims(self, node: str, identifiers: Identifiers) -> None:
        taken = self._ownership.claims_of_other_nodes(node, identifiers)
        if taken:
            other = min(taken.values())
            claims = sorted(claim for claim, owner in taken.items() if owner == other)
            raise EnrolmentRefused(
                Refusal.ALREADY_ENROLLED,
                f"{', '.join(claims)} belongs to node {other}:"
                f" leave it out of {node}'s --agent-identifiers, or revoke {other}",
            )

    def _sign(
        self, record: NodeRecord, identifiers: Identifiers, key: PublicKey
    ) -> EnrolmentResponse:
        try:
            certificate = self._authority.sign_node(
                record.node, identifiers, key, record.enrolment, self._lifetime
            )
            # Identifiers in older certificates that are still valid remain the node's. An address
            # that it claims within one of its networks is its own from now on.
            record = record.with_certificate(
                identifiers, certificate.not_valid_after_utc, utc_now(self._clock)
            )
        except BadIdentity as error:
            raise EnrolmentRefused(Refusal.BAD_REQUEST, str(error)) from None
        except BadIdentifiers:
            raise EnrolmentRefused(
                Refusal.BAD_REQUEST,
                f"{record.node} has had more than {MAX_IDENTIFIERS} identifiers in certificates"
                " that have not expired: wait until some have, or revoke it and enroll it again",
            ) from None
        except AuthorityExpired as error:
            raise EnrolmentRefused(Refusal.UNAVAILABLE, str(error)) from None
        # Stored before the response is sent: a name must not be free while a certificate for it
        # exists.
        self._records.put(record)
        return EnrolmentResponse(
            certificates_to_pem([certificate]).decode(),
            certificates_to_pem([self._authority.certificate]).decode(),
        )


def _parse_request(request: EnrolmentRequest) -> tuple[str, Identifiers, PublicKey]:
    try:
        node = check_node_name(request.node)
        claimed = parse_identifiers(request.identifiers)
        key = key_of_request(request.csr)
    except (BadIdentity, BadIdentifiers, BadRequest) as error:
        raise EnrolmentRefused(Refusal.BAD_REQUEST, str(error)) from None
    if node in _CALLER_NAMES:
        raise EnrolmentRefused(
            Refusal.BAD_REQUEST,
            f"{node!r} is the name by which kubelets recognize authorized callers: give the node"
            " another one",
        )
    return node, dataclasses.replace(claimed, hosts=claimed.hosts | {node}), key


def _not_authorized(text: str) -> EnrolmentRefused:
    return EnrolmentRefused(Refusal.NOT_AUTHORIZED, text)


def _new_enrolment() -> str:
    return secrets.token_hex(8)


class _FailureLimit:
    """Counts the wrong tokens from each address; forgets the oldest addresses first."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._windows = BoundedDict[str, tuple[float, int]](_MAX_ADDRESSES)

    def check(self, address: str) -> None:
        """Raise :class:`EnrolmentRefused` if the address has too many failures."""
        begin, count = self._windows.get(address, (0.0, 0))
        wait = begin + FAILURE_WINDOW - self._clock.seconds()
        if count > MAX_TOKEN_FAILURES:
            raise EnrolmentRefused(
                Refusal.RATE_LIMITED,
                f"too many wrong join tokens came from {address}: wait {wait:.0f} seconds",
            )

    def add(self, address: str) -> None:
        """Count a failure."""
        now = self._clock.seconds()
        begin, count = self._windows.get(address, (now, 0))
        if now - begin >= FAILURE_WINDOW:
            begin, count = now, 0
        self._windows[address] = (begin, count + 1)
