"""What a script gives for an engine, before that has memory for it, and whether it is alike on all ranks. Private."""
