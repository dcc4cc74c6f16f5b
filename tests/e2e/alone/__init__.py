"""Tests that measure, or require a time, and so run alone, or beside each other (``quiet``).

They are in one package so that they run one after the other: otherwise each of them would wait
for a test that has started before it.
"""
