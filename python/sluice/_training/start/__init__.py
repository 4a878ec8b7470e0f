"""Checks of a script's arguments before any memory is taken, also across ranks. Private."""
