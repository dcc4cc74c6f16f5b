"""The Twisted binding of the protocol: sessions over TLS, and streams as transports."""
