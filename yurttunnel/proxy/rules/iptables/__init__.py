"""Rules of iptables: the chains of kube-proxy's userspace mode, and some that reject clients."""
