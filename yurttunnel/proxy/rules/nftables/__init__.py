"""Rules of native nftables: a table of our own for each family, whose maps contain the services."""
