"""Shows an engine's steps: values in files of monitors, samples per second, and times."""
