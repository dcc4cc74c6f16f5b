"""Tests of ``twist yurtproxy`` as a process on a node, between clients and endpoints elsewhere."""
