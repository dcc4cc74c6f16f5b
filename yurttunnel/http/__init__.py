"""HTTP/1.1 for a proxy: message heads, bodies, connections, upgrades and error responses."""
