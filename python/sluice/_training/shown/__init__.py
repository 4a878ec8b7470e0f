"""Shows an engine's steps: a bar, values in files of monitors, samples per second, and times."""
