"""Tests that measure, and use so little CPU time that they run beside each other.

They are in one package so that no test that runs alone is scheduled between them.
"""
