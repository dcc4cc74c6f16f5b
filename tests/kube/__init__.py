"""Tests of the Kubernetes API client."""
