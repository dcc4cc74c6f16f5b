"""The interface at whose address pods reach the hub."""
