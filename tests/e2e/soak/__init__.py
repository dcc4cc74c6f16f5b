"""Random faults under load for a given time: no data may be lost, and no resource may leak."""
