"""Forward and backward over memory tiers: hooks, and steps layer by layer. Private."""
