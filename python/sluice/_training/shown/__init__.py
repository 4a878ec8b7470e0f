"""Shows an engine's steps: values in files of monitors, and samples per second."""
