"""The hub of a node beside nginx as an HTTP proxy. See docs/performance.md."""
