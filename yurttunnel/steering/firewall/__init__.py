"""The rules that lead connections to the server, by the programs of iptables."""
