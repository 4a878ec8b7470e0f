"""The parts of scripts/check_structure.py."""
