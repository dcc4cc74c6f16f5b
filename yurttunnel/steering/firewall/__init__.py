"""The rules that redirect connections to the server, managed by the iptables programs."""
