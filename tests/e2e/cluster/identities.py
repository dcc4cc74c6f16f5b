"""The identities in the cluster of a test: its authority, certificates and kubeconfig files."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from tests.apiserver.signing import SigningAuthority
from yurttunnel.pki.authority import Authority
from yurttunnel.pki.credentials import (
    Credentials,
    certificates_to_pem,
    key_from_pem,
    key_to_pem,
    new_key,
)
from yurttunnel.pki.directory import StateDirectory
from yurttunnel.pki.names import CALLER_NAME


class Identities:
    """The files in ``directory``: ``ca.crt``, and NAME.crt with NAME.key for each identity.

    ``authority`` signs. Credentials that are created here trust ``trusted``; all other programs
    trust the file ``ca_path``.
    """

    def __init__(self, reactor, directory: Path) -> None:
        self.directory = directory
        self._reactor = reactor
        self._authority_directory = directory
        self.authority = Authority.open(reactor, StateDirectory.open(directory))
        self.trusted = (self.authority.certificate,)
        self.ca_path = directory / "ca.crt"

    def add_authority(self) -> Authority:
        """Create another authority, which is trusted in addition to the one that signs."""
        successor = Authority.open(self._reactor, StateDirectory.open(self.directory / "successor"))
        self.trusted = (self.authority.certificate, successor.certificate)
        self.publish(*self.trusted)
        return successor

    def promote(self, successor: Authority) -> None:
        """Make the other authority the one that signs."""
        self.authority = successor
        self._authority_directory = self.directory / "successor"

    def publish(self, *authorities: x509.Certificate) -> None:
        """Replace the file with the trusted authorities."""
        new = self.ca_path.with_suffix(".new")
        new.write_bytes(certificates_to_pem(authorities))
        os.replace(new, self.ca_path)

    def serving(self, name: str, hosts: list[str], *addresses: str) -> Credentials:
        """Create a certificate for a server."""
        key = new_key()
        found = [ip_address(address) for address in addresses]
        certificate = self.authority.sign_server(key.public_key(), hosts, found)
        return self._keep(name, key, certificate)

    def client(self, name: str, user: str, group: str | None = None) -> Credentials:
        """Create a certificate for a client."""
        key = new_key()
        return self._keep(name, key, self.authority.sign_client(key.public_key(), user, group))

    def caller(self) -> Credentials:
        """Create the certificate with which kube-apiserver authenticates to kubelets."""
        return self.client("kubelet-client", CALLER_NAME)

    def signing_authority(self) -> SigningAuthority:
        """Return the authority in the form of the cluster's signer."""
        key = key_from_pem((self._authority_directory / "ca.key").read_bytes())
        return SigningAuthority(self.authority.certificate, key)

    def account_keys(self) -> None:
        """Create the keys that sign the tokens of service accounts."""
        key = new_key()
        encoding = serialization.Encoding.PEM
        self._write(
            "accounts.key",
            key.private_bytes(
                encoding,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.NoEncryption(),
            ),
        )
        public = serialization.PublicFormat.SubjectPublicKeyInfo
        self._write("accounts.pub", key.public_key().public_bytes(encoding, public))

    def kubeconfig(self, path: Path, server: str, **user: str) -> Path:
        """Write a kubeconfig; ``user`` has fields of ``users[].user``, such as ``tokenFile``."""
        fields = {name.replace("_", "-"): value for name, value in user.items()}
        cluster = {"server": server, "certificate-authority": str(self.ca_path)}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": fields}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "current-context": "test",
        }
        path.write_text(json.dumps(content))
        path.chmod(0o600)
        return path

    def client_kubeconfig(self, name: str, server: str, user: str, group: str | None) -> Path:
        """Write the kubeconfig of a client with a certificate."""
        self.client(name, user, group)
        return self.kubeconfig(
            self.directory / f"{name}.kubeconfig",
            server,
            client_certificate=str(self.directory / f"{name}.crt"),
            client_key=str(self.directory / f"{name}.key"),
        )

    def _keep(self, name, key, certificate) -> Credentials:
        self._write(f"{name}.crt", certificates_to_pem([certificate]))
        self._write(f"{name}.key", key_to_pem(key))
        return replace(self.authority.credentials(key, certificate), authorities=self.trusted)

    def _write(self, name: str, data: bytes) -> None:
        path = self.directory / name
        path.write_bytes(data)
        path.chmod(0o600)
