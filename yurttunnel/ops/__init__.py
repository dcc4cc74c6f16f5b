"""What programs offer their operators: meta pages, metrics, logs, flags, and graceful shutdown."""
