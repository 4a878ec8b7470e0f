"""The place of ``checkpointing`` in DeepSpeed."""
