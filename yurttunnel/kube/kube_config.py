"""Kubeconfig files (``k8s.io/client-go/tools/clientcmd/api/v1/types.go``)."""

from __future__ import annotations

import base64
import binascii
import os
from pathlib import Path
from typing import Any

from twisted.logger import Logger

from yurttunnel.kube.configuration import BadKubeConfiguration, KubeConfiguration, checked_host
from yurttunnel.kube.credentials import FileCredentials, ICredentialsSource
from yurttunnel.kube.exec_credentials import ExecCredentials, Plugin
from yurttunnel.kube.reloaded_file import ReloadedFile
from yurttunnel.kube.yaml_documents import yaml_document
from yurttunnel.ops.plain_files import read_plain

_log = Logger()

_UNSUPPORTED_USER_FIELDS = {
    "auth-provider": "use a token, a client certificate or an exec plugin",
    "username": "passwords are not accepted by the API since Kubernetes 1.19",
    "as": "impersonation is not supported here",
}


def read_kube_config(path: Path) -> KubeConfiguration:
    """Return the current context of a file; raises :class:`BadKubeConfiguration`."""
    try:
        path = path.expanduser()
    except RuntimeError:
        raise BadKubeConfiguration(f"{path}: that user is not known, or has no home") from None
    try:
        root = yaml_document(read_plain(path))
        if root is None:
            raise FileNotFoundError
        return _KubeConfigReader(path, root).configuration()
    except FileNotFoundError:
        raise BadKubeConfiguration(f"{path}: the kubeconfig does not exist or is empty") from None
    except OSError as error:
        raise BadKubeConfiguration(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        # Below the sections, the types of values are not checked in advance.
        reason = " ".join(str(error).split())
        raise BadKubeConfiguration(f"{path} is not a kubeconfig: {reason}") from None


class _KubeConfigReader:
    """The sections of one file for its current context."""

    def __init__(self, path: Path, root: object) -> None:
        self._path = path
        self._root = self._mapping(root, "the file")
        name = self._root.get("current-context")
        if not name:
            raise BadKubeConfiguration(
                f"{path}: there is no current-context: set it with kubectl config use-context"
            )
        self._context = self._named("context", name)
        self._cluster = self._named("cluster", self._context.get("cluster"))
        user = self._context.get("user")
        self._user = self._named("user", user) if user else {}

    def _named(self, kind: str, name: object) -> dict[str, Any]:
        """Return the only entry with a name in the list of a kind."""
        entries = [self._mapping(each, f"{kind}s") for each in self._root.get(f"{kind}s") or ()]
        found = [each.get(kind) for each in entries if each.get("name") == name]
        if len(found) != 1:
            raise BadKubeConfiguration(
                f"{self._path}: {len(found)} entries of {kind}s have the name {name!r}, not one:"
                " see kubectl config view"
            )
        return self._mapping(found[0] or {}, f"the {kind} {name!r}")

    def _mapping(self, value: object, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise TypeError(f"{where} has to be a mapping")
        return value

    def configuration(self) -> KubeConfiguration:
        """Return the configuration."""
        cluster = self._cluster
        if cluster.get("insecure-skip-tls-verify"):
            raise BadKubeConfiguration(
                f"{self._path}: insecure-skip-tls-verify is refused, because anybody could then"
                " impersonate the API: give certificate-authority, or tls-server-name if the name"
                " differs"
            )
        if cluster.get("proxy-url"):
            raise BadKubeConfiguration(f"{self._path}: proxy-url is not supported: remove it")
        host = checked_host(str(cluster.get("server") or ""), f"{self._path}: server")
        if host.startswith("http://"):
            _log.warn(
                "{path}: connecting to the API without TLS at {host}", path=self._path, host=host
            )
        authorities = self._source(cluster, "certificate-authority")
        return KubeConfiguration(
            host,
            str(self._context.get("namespace") or "default"),
            authorities.read if isinstance(authorities, ReloadedFile) else lambda: authorities,
            self._credentials(),
            str(cluster.get("tls-server-name") or ""),
        )

    def _credentials(self) -> ICredentialsSource:
        user = self._user
        for field, text in _UNSUPPORTED_USER_FIELDS.items():
            if field in user:
                raise BadKubeConfiguration(f"{self._path}: the user has {field!r}: {text}")
        certificate = self._source(user, "client-certificate")
        key = self._source(user, "client-key")
        if bool(certificate) != bool(key):
            raise BadKubeConfiguration(
                f"{self._path}: the user has only one of client-certificate and client-key"
            )
        if user.get("exec") and not (user.get("token") or user.get("tokenFile")):
            return ExecCredentials(self._plugin(user["exec"]))
        # The file takes precedence, as in client-go.
        token: ReloadedFile | str = str(user.get("token") or "").strip()
        if user.get("tokenFile"):
            token = self._file(user["tokenFile"], "tokenFile")
        return FileCredentials(token, certificate, key)

    def _source(self, section: dict[str, Any], key: str) -> ReloadedFile | bytes:
        inline = section.get(f"{key}-data")
        if inline:
            try:
                return base64.b64decode(inline, validate=True)
            except (binascii.Error, ValueError, TypeError):
                raise BadKubeConfiguration(f"{self._path}: {key}-data is not base64") from None
        return self._file(section[key], key) if section.get(key) else b""

    def _file(self, name: str, key: str) -> ReloadedFile:
        file = ReloadedFile(self._path.parent / str(name))
        try:
            file.read()
        except OSError as error:
            raise BadKubeConfiguration(
                f"{self._path}: {key}: {file.path} cannot be read: {error.strerror}"
            ) from None
        return file

    def _plugin(self, section: dict[str, Any]) -> Plugin:
        command, version = section.get("command"), section.get("apiVersion")
        if not command or not version:
            raise BadKubeConfiguration(f"{self._path}: exec needs a command and an apiVersion")
        # A command with a slash is relative to the file; others are looked up on the PATH
        # (KEP-541).
        if os.sep in command:
            # Absolute, since "./plugin" relative to "config" would become "plugin", which is looked
            # up on the PATH.
            command = str(self._path.parent.absolute() / command)
        cluster = None
        if section.get("provideClusterInfo"):
            cluster = self._cluster_info()
        return Plugin(
            command=command,
            arguments=tuple(str(each) for each in section.get("args") or ()),
            environment={str(e["name"]): str(e["value"]) for e in section.get("env") or ()},
            api_version=str(version),
            cluster=cluster,
            hint=str(section.get("installHint") or ""),
        )

    def _cluster_info(self) -> dict[str, Any]:
        """Return the cluster in the form of ``client.authentication.k8s.io/v1``."""
        cluster = self._cluster
        info: dict[str, Any] = {"server": cluster.get("server")}
        if cluster.get("tls-server-name"):
            info["tls-server-name"] = cluster["tls-server-name"]
        authorities = self._source(cluster, "certificate-authority")
        content = authorities.read() if isinstance(authorities, ReloadedFile) else authorities
        if content:
            info["certificate-authority-data"] = base64.b64encode(content).decode("ascii")
        for extension in cluster.get("extensions") or ():
            if extension.get("name") == "client.authentication.k8s.io/exec":
                info["config"] = extension.get("extension")
        return info
