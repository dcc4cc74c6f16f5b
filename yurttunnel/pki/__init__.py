"""Certificates: the embedded authority, enrolment, and contexts that rotate live."""
