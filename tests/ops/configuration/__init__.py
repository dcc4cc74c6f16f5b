"""Tests of what a program is told by flags, variables and a file."""
