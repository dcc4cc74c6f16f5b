"""Tests of who gets which endpoint."""
