"""Who the hub is: to the API servers its node, and to pods the API."""
