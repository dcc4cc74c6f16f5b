"""What measures, and leaves processors to its like: these tests run beside each other.

They lie together so that they do: between them comes no other one, which would run alone.
"""
