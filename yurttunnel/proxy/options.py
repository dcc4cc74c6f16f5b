"""The command line of the service proxy: parsed, validated and converted to :class:`Settings`."""

from __future__ import annotations

import socket
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

from twisted.logger import Logger
from twisted.python import usage

from yurttunnel.ops.configuration.sources import Source
from yurttunnel.ops.diagnose.flags import bundle_path
from yurttunnel.ops.help import Example
from yurttunnel.ops.options import KLOG_FLAGS, KLOG_SWITCHES, CommandOptions
from yurttunnel.ops.plain_files import read_plain
from yurttunnel.proxy import flag_table
from yurttunnel.proxy.kernel.parts import Masquerade
from yurttunnel.proxy.settings import (
    BackEnd,
    Mode,
    PageSettings,
    Settings,
    SourceSettings,
    SyncSettings,
    UdpSettings,
)

_NO_IPVS = "there is no mode ipvs"
_NO_SYSCTLS = "conntrack limits are set per machine: use sysctl"
_USE_ADDRESSES = "use --healthz-bind-address and --metrics-bind-address"
_OF_KUBE_PROXY = b"kind: KubeProxyConfiguration"
_ONE_WATCH = "each change is one watch event, whatever the rate"

# Flags of kube-proxy up to 1.35, and of its logging library.
_IGNORED_FLAGS = {
    "proxy-mode": "use --mode and --proxy-backend",
    "config-sync-period": "the API is watched, and listed again only when a watch fails",
    "conntrack-max-per-core": _NO_SYSCTLS,
    "conntrack-min": _NO_SYSCTLS,
    "conntrack-tcp-timeout-established": _NO_SYSCTLS,
    "conntrack-tcp-timeout-close-wait": _NO_SYSCTLS,
    "conntrack-udp-timeout": _NO_SYSCTLS,
    "conntrack-udp-timeout-stream": _NO_SYSCTLS,
    "detect-local-mode": "use --cluster-cidr",
    "pod-bridge-interface": "use --cluster-cidr",
    "pod-interface-name-prefix": "use --cluster-cidr",
    "feature-gates": "there are none",
    "healthz-port": _USE_ADDRESSES,
    "metrics-port": _USE_ADDRESSES,
    "iptables-masquerade-bit": "nothing is marked for masquerading in iptables",
    "ipvs-exclude-cidrs": _NO_IPVS,
    "ipvs-min-sync-period": _NO_IPVS,
    "ipvs-scheduler": _NO_IPVS,
    "ipvs-sync-period": _NO_IPVS,
    "ipvs-tcp-timeout": _NO_IPVS,
    "ipvs-tcpfin-timeout": _NO_IPVS,
    "ipvs-udp-timeout": _NO_IPVS,
    "kube-api-burst": _ONE_WATCH,
    "kube-api-qps": _ONE_WATCH,
    "kube-api-content-type": "objects are requested as JSON",
    "oom-score-adj": "use OOMScoreAdjust= of the unit, or the pod's priorityClassName",
    "resource-container": "use the cgroup of the unit or pod",
    "show-hidden-metrics-for-version": "no metric is hidden",
    "logging-format": "use --log-format",
    "log-flush-frequency": "each line is written at once",
    **KLOG_FLAGS,
}
_IGNORED_SWITCHES = {
    "bind-address-hard-fail": "a port in use is reported, and everything else is served",
    "conntrack-tcp-be-liberal": "set net.netfilter.nf_conntrack_tcp_be_liberal by sysctl; the"
    " proxy applies it",
    "iptables-localhost-nodeports": "node ports are served at 127.0.0.1 in user mode",
    "ipvs-strict-arp": _NO_IPVS,
    "profiling": "see /debug on --metrics-bind-address",
    **KLOG_SWITCHES,
}


class Options(CommandOptions[Settings]):
    """Options of ``twist yurtproxy``."""

    invocation = "yurttunnel proxy"

    longdesc = """Service proxy for an edge node; replaces kube-proxy. It forwards connections to a
    cluster IP, an external address or a node port to an endpoint of the Service, and tries another
    endpoint if one does not answer. Changing the firewall requires the capabilities CAP_NET_ADMIN
    and CAP_NET_RAW. Durations are in seconds or have units: 30, 30s, 5m, 1h30m."""

    examples = (
        Example("Behind a hub", "--master http://127.0.0.1:10261"),
        Example("With the kubelet's kubeconfig", "--kubeconfig /etc/kubernetes/kubelet.conf"),
        Example("In the kernel only", "--mode kernel --master http://127.0.0.1:10261"),
    )

    ignored_from = "kube-proxy"
    ignored_flags = _IGNORED_FLAGS
    ignored_switches = _IGNORED_SWITCHES

    table = flag_table.TABLE

    _log = Logger()

    def read_file(self, path: Path) -> Source:
        """See :class:`CommandOptions`; kube-proxy's own ``--config`` file is ignored."""
        with suppress(OSError):
            if _OF_KUBE_PROXY in read_plain(path):
                self._log.warn(
                    "--config {file} is ignored, because it is a KubeProxyConfiguration: use"
                    " flags, or a file of flags (docs/configuration.md)",
                    file=str(path),
                )
                return {}
        return super().read_file(path)

    def make_settings(self) -> Settings:
        bundle_path(self)
        mode, back_end = self.value(flag_table.MODE), self.value(flag_table.PROXY_BACKEND)
        if mode is Mode.KERNEL and back_end in (BackEnd.IPTABLES, BackEnd.NONE):
            raise usage.UsageError(
                f"--mode kernel works only with nftables: leave --proxy-backend {back_end.value}"
                " out, or use --mode user"
            )
        return Settings(
            node_name=self._node_name(),
            sources=self._sources(),
            pages=self._pages(),
            mode=mode,
            back_end=back_end,
            bind_address=self._bind_address(back_end),
            proxy_ports=self.value(flag_table.PROXY_PORT_RANGE),
            node_port_networks=self.optional_value(flag_table.NODEPORT_ADDRESSES, ()),
            masquerade=Masquerade(
                everyone=self.value(flag_table.MASQUERADE_ALL),
                pods=self.optional_value(flag_table.CLUSTER_CIDR, ()),
            ),
            udp=UdpSettings(
                first=self.value(flag_table.UDP_FIRST_TIMEOUT),
                idle=self.value(flag_table.UDP_TIMEOUT),
            ),
            sync=self._sync(),
            cleanup=self.is_given(flag_table.CLEANUP),
            state_dir=self.optional_value(flag_table.STATE_DIR, None),
        )

    def _node_name(self) -> str:
        flag = flag_table.HOSTNAME_OVERRIDE
        # Manifests may set the flag without a value.
        given = self[flag.name]
        if given or (given is None and self._environment.get(flag.variable)):
            return self.value(flag)
        try:
            return flag.parse(socket.gethostname())
        except ValueError as reason:
            raise usage.UsageError(
                "--hostname-override is missing, and the host name is not valid as a node name:"
                f" {reason}"
            ) from None

    def _sources(self) -> SourceSettings:
        file = self.optional_value(flag_table.SERVICES_FILE, None)
        kube_config, master = flag_table.KUBE_CONFIG, flag_table.MASTER
        has_api = self.is_given(kube_config) or self.is_given(master)
        by_http = self.is_given(master) and self.value(master).startswith("http:")
        if by_http and self.is_given(kube_config):
            raise usage.UsageError(
                "--kubeconfig has no effect with --master http://, which is for a hub and sends"
                " no credentials: leave it out, or write https://"
            )
        return SourceSettings(
            api=has_api or file is None,
            kube_config=self.value(kube_config) if self.is_given(kube_config) else None,
            master=self.value(master) if self.is_given(master) else None,
            file=file,
        )

    def _pages(self) -> PageSettings:
        health, metrics = flag_table.HEALTHZ_BIND_ADDRESS, flag_table.METRICS_BIND_ADDRESS
        return PageSettings(
            health=self.value(health) if self.is_given(health) else None,
            metrics=self.value(metrics),
        )

    def _bind_address(self, back_end: BackEnd) -> str:
        host = self.value(flag_table.BIND_ADDRESS)
        address = ip_address(host)
        if address.is_loopback and back_end is not BackEnd.NONE:
            raise usage.UsageError(
                "--bind-address: rules redirect clients of Services to the proxy, but the kernel"
                f" drops packets from other interfaces to {host} (route_localnet is off): leave it"
                " out, or let clients connect to the proxy's ports directly, with --proxy-backend"
                " none"
            )
        if not (address.is_loopback or address.is_unspecified):
            raise usage.UsageError(
                f"--bind-address: {host} is one of several addresses that clients connect to, and"
                " rules redirect all of them: leave it out, or give 0.0.0.0"
            )
        return host

    def _sync(self) -> SyncSettings:
        settings = SyncSettings(
            period=self.value(flag_table.SYNC_PERIOD),
            min_period=self.value(flag_table.MIN_SYNC_PERIOD),
            drain=self.value(flag_table.DRAIN_TIMEOUT),
            removes_rules=self.value(flag_table.REMOVE_RULES),
        )
        if settings.min_period > settings.period:
            raise usage.UsageError(
                "--iptables-min-sync-period is longer than --iptables-sync-period: give less"
            )
        return settings
