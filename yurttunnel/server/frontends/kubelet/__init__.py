"""Requests that are meant for kubelets: taken in as HTTP, and carried through the tunnel."""
