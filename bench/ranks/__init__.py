"""Measures `sluice train` over several ranks."""
