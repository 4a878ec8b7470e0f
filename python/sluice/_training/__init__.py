"""Private: what engines are made of."""
