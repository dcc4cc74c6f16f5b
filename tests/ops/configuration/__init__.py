"""Tests of a program's configuration by flags, environment variables and a file."""
