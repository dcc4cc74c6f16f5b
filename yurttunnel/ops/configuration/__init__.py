"""What a program is told: by flags, variables of the environment, and a file that is followed."""
