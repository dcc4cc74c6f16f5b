"""The cloud end: which agent serves a destination, and the listeners through which it is asked."""
