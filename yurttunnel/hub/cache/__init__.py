"""What each client last saw of the API, kept on disk."""
