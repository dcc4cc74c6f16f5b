"""Tests of load balancing."""
