"""Variables of the environment: those of launchers, and how threads of OpenMP wait."""
