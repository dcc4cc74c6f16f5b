"""What measures, and leaves the processors idle: these tests run beside each other.

They lie together so that they do: between them comes no other one, which would run alone.
"""
