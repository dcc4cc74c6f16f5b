"""Random faults under load for a given time: nothing may be lost, and nothing may grow."""
