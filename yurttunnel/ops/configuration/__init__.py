"""Configuration: by flags, environment variables, and a file that is reloaded on change."""
