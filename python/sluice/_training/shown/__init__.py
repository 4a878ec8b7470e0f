"""What an engine shows of its steps: values in files of monitors, and samples per second."""
