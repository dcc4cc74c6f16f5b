"""Tests of what asks the Kubernetes API."""
