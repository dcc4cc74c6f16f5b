"""The configuration of a process, from a kubeconfig file or from a pod's service account.

Changed files are read again, so authorities, tokens and certificates rotate without a restart.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from yurttunnel.kube.configuration import BadKubeConfiguration, KubeConfiguration, checked_host
from yurttunnel.kube.credentials import FileCredentials
from yurttunnel.kube.reloaded_file import EmptyFile, ReloadedFile

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""The directory of a pod's service account: ``ca.crt``, ``token`` and ``namespace``."""


def load_configuration(
    kube_config: Path | None,
    apiserver_addr: str | None = None,
    *,
    flag: str = "--kube-config",
    service_account: Path = SERVICE_ACCOUNT,
    environment: Mapping[str, str] = os.environ,
) -> KubeConfiguration:
    """Read a kubeconfig file, or without one the pod's service account.

    ``apiserver_addr``, as ``host:port`` or an https URL, replaces the address. ``flag`` is the flag
    that names the file, for messages. Raises :class:`BadKubeConfiguration`.
    """
    if kube_config is not None:
        # A pod needs neither this module nor PyYAML.
        from yurttunnel.kube.kube_config import read_kube_config

        configuration = read_kube_config(kube_config)
        if apiserver_addr is None:
            return configuration
        return replace(configuration, host=_address(apiserver_addr))
    host = _pod_host(environment, flag) if apiserver_addr is None else _address(apiserver_addr)
    return _pod_configuration(host, service_account, flag)


def _address(text: str) -> str:
    url = text if "://" in text else f"https://{text}"
    if not url.startswith("https://"):
        raise BadKubeConfiguration(f"--apiserver-addr: {text!r} has to be HOST:PORT or https://")
    return checked_host(url, "--apiserver-addr")


def _pod_host(environment: Mapping[str, str], flag: str) -> str:
    host = environment.get("KUBERNETES_SERVICE_HOST")
    port = environment.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise BadKubeConfiguration(
            "there is no API: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set, so"
            f" this is no pod; give {flag} FILE"
        )
    host = f"[{host}]" if ":" in host else host
    return checked_host(f"https://{host}:{port}", "KUBERNETES_SERVICE_HOST")


def _pod_configuration(host: str, directory: Path, flag: str) -> KubeConfiguration:
    authorities, token = ReloadedFile(directory / "ca.crt"), ReloadedFile(directory / "token")
    for file in (authorities, token):
        try:
            file.read()
        except EmptyFile:
            raise BadKubeConfiguration(
                f"{file.path} is empty: the pod's service account is broken"
            ) from None
        except OSError as error:
            raise BadKubeConfiguration(
                f"{file.path} cannot be read ({error.strerror}): run as a pod with"
                f" automountServiceAccountToken, or give {flag} FILE"
            ) from None
    try:
        namespace = (directory / "namespace").read_text().strip()
    except OSError:
        namespace = ""
    return KubeConfiguration(
        host, namespace or "default", authorities.read, FileCredentials(token=token)
    )
