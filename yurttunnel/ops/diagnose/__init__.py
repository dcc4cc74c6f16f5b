"""``--diagnose``: all that is needed to see from afar what is wrong, in one file without secrets.

It runs in a process of its own, without a reactor, beside the one that it is about.
"""
