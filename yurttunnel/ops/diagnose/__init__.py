"""``--diagnose``: all information for remote troubleshooting, in one file without secrets.

It runs in a process of its own, without a reactor, besides the process that it diagnoses.
"""
