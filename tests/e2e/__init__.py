"""Tests of whole programs as real processes, with real clients, over loopback."""
