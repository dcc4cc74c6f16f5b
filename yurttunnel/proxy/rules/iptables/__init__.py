"""Rules of iptables: the chains of kube-proxy's userspace mode, and some for refusals."""
