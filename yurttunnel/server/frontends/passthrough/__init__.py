"""Layer-4 pass-through: connections reach their kubelets unchanged, including TLS."""
