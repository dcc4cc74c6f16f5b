"""Layer-4 pass-through: connections go to their kubelets as they are, TLS and all."""
