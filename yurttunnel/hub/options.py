"""The command line of the hub: parsed, checked and turned into :class:`Settings`."""

from __future__ import annotations

from ipaddress import ip_address

from twisted.python import usage

from yurttunnel.http.authority import Address
from yurttunnel.hub import flag_table
from yurttunnel.hub.settings import (
    BootstrapMode,
    BootstrapSettings,
    HealthSettings,
    InterfaceSettings,
    ListenerSettings,
    Settings,
)
from yurttunnel.ops.diagnose.flags import bundle_path
from yurttunnel.ops.help import Example
from yurttunnel.ops.options import KLOG_FLAGS, KLOG_SWITCHES, CommandOptions
from yurttunnel.pki.certificate_template import HUB_ADDRESS, HUB_ADDRESS_6

# Flags of yurthub 1.6 and earlier, and of its logging library.
_IGNORED_FLAGS = {
    "gc-frequency": "--cache-max-bytes limits the cache",
    "pool-scope-resources": "each client has its own watch",
    "host-control-plane-address": "there is no working mode local",
    "coordinator-server-addr": "there is no pool coordinator",
    "coordinator-storage-addr": "there is no pool coordinator",
    "coordinator-storage-prefix": "there is no pool coordinator",
    "cert-mgr-mode": "use --bootstrap-mode",
    **KLOG_FLAGS,
}
_IGNORED_SWITCHES = {
    "enable-iptables": "no rules are needed if the INPUT chain accepts the node's own pods",
    "enable-node-pool": "pools are watched if a filter needs them",
    "enable-coordinator": "there is no pool coordinator",
    "access-server-through-hub": "the hub's own requests always go through it",
    "leader-elect": "there is no pool coordinator",
    "profiling": "see /debug on --serve-port",
    **KLOG_SWITCHES,
}


class Options(CommandOptions[Settings]):
    """Options of ``twist yurthub``."""

    invocation = "yurttunnel hub"

    longdesc = """A caching proxy to the Kubernetes API for the clients on an edge node. It forwards
    requests to the API servers, caches the responses, and serves from the cache while the API
    servers are unreachable. Clients on the node use http://127.0.0.1:10261 without credentials;
    pods use http://169.254.2.1:10261 or https://169.254.2.1:10268 with their tokens. Durations are
    in seconds or have units: 30, 30s, 5m, 1h30m."""

    examples = (
        Example(
            "On a node that has not joined yet",
            "--node-name edge-1 --server-addr https://api.example.org:6443"
            " --join-token 012345.0123456789abcdef"
            " --discovery-token-ca-cert-hash sha256:HASH",
        ),
        Example(
            "On a node that has joined",
            "--node-name edge-1 --server-addr https://api.example.org:6443",
        ),
    )

    ignored_from = "yurthub 1.6"
    ignored_flags = _IGNORED_FLAGS
    ignored_switches = _IGNORED_SWITCHES

    table = flag_table.TABLE

    def make_settings(self) -> Settings:
        bundle_path(self)
        self.dump = self.optional_value(flag_table.DUMP_CACHE, None)
        self.value(flag_table.WORKING_MODE)
        return Settings(
            node_name=self.value(flag_table.NODE_NAME),
            servers=self.value(flag_table.SERVER_ADDR),
            root_dir=self.value(flag_table.ROOT_DIR),
            cache_dir=self.value(flag_table.DISK_CACHE_PATH),
            cache_bytes=self.value(flag_table.CACHE_MAX_BYTES),
            listeners=self._listeners(),
            bootstrap=self._bootstrap(),
            load_balancing=self.value(flag_table.LB_MODE),
            health=self._health(),
            max_requests=self.value(flag_table.MAX_REQUESTS),
            max_watches=self.value(flag_table.MAX_WATCHES),
            min_watch_seconds=self.value(flag_table.MIN_REQUEST_TIMEOUT),
            token_placeholders=self.value(flag_table.OFFLINE_TOKEN_PLACEHOLDERS),
            namespace=self.value(flag_table.NAMESPACE),
            node_pool=self.value(flag_table.NODEPOOL_NAME)
            if self.is_given(flag_table.NODEPOOL_NAME)
            else "",
            pool_topology=self.value(flag_table.POOL_TOPOLOGY),
            disabled_filters=self._disabled_filters(),
        )

    def _listeners(self) -> ListenerSettings:
        host = self.value(flag_table.BIND_PROXY_ADDRESS)
        if not ip_address(host).is_loopback:
            raise usage.UsageError(
                f"--bind-proxy-address: {host} is not a loopback address, and everybody who can"
                " connect to it would get the node's identity: leave it out, and let pods use"
                " --dummy-if-ip"
            )
        return ListenerSettings(
            meta_host=self.value(flag_table.BIND_ADDRESS),
            meta_port=self.value(flag_table.SERVE_PORT),
            proxy_host=host,
            proxy_port=self.value(flag_table.PROXY_PORT),
            secure_port=self.value(flag_table.PROXY_SECURE_PORT),
            interface=self._interface(host),
        )

    def _interface(self, proxy_host: str) -> InterfaceSettings | None:
        if not self.value(flag_table.ENABLE_DUMMY_IF):
            return None
        usual: Address = HUB_ADDRESS if ip_address(proxy_host).version == 4 else HUB_ADDRESS_6
        address = self.optional_value(flag_table.DUMMY_IF_IP, usual)
        return InterfaceSettings(self.value(flag_table.DUMMY_IF_NAME), address)

    def _bootstrap(self) -> BootstrapSettings:
        mode = self.value(flag_table.BOOTSTRAP_MODE)
        file, token = flag_table.BOOTSTRAP_FILE, flag_table.JOIN_TOKEN
        # Upstream's manifests have these flags with empty values.
        path = self.value(file) if self.is_given(file) else None
        given = self.value(token) if self.is_given(token) else None
        if path is not None and given is not None:
            raise usage.UsageError("give --bootstrap-file or --join-token, not both")
        pins = frozenset[str]().union(*self.all_values(flag_table.DISCOVERY_PINS))
        skips = self.value(flag_table.SKIP_PINS)
        if given is not None and not (pins or skips or mode is not BootstrapMode.TOKEN):
            raise usage.UsageError(
                "--discovery-token-ca-cert-hash is missing: with a token it authenticates the"
                " cluster (kubeadm token create --print-join-command), or give"
                " --discovery-token-unsafe-skip-ca-verification"
            )
        organizations = flag_table.HUB_CERT_ORGANIZATIONS
        return BootstrapSettings(
            mode=mode,
            file=path,
            token=given,
            pins=pins,
            skips_pins=skips,
            kubelet_certificate=self.value(flag_table.KUBELET_CERTIFICATE),
            kubelet_authorities=self.value(flag_table.KUBELET_CA_FILE),
            organizations=self.optional_value(organizations, ()),
        )

    def _health(self) -> HealthSettings:
        settings = HealthSettings(
            interval=self.value(flag_table.HEARTBEAT_INTERVAL),
            timeout=self.value(flag_table.HEARTBEAT_TIMEOUT),
            retries=self.value(flag_table.HEARTBEAT_RETRY),
            threshold=self.value(flag_table.HEARTBEAT_THRESHOLD),
            kubelet_grace=self.value(flag_table.KUBELET_GRACE),
        )
        if settings.timeout > settings.interval:
            raise usage.UsageError(
                "--heartbeat-timeout-seconds is longer than --heartbeat-interval-seconds: give less"
            )
        return settings

    def _disabled_filters(self) -> frozenset[str]:
        if not self.value(flag_table.ENABLE_RESOURCE_FILTER):
            return frozenset("*")
        return self.optional_value(flag_table.DISABLED_FILTERS, frozenset())
