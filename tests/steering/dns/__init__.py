"""Tests of the DNS controller."""
