"""Access to the kernel's sets of addresses, its conntrack table and nftables by netlink."""
