"""What measures, or holds programs to a time, and so runs alone, or beside its like (``quiet``).

It lies together so that it runs in one go: between two tests of which each runs alone no other
one has to begin and to be waited for.
"""
