"""Checkpoints: the file beside the states, and what is checked before the states are loaded. Private."""
