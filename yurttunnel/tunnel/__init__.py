"""The protocol bound to Twisted: sessions over TLS, and streams that are transports."""
