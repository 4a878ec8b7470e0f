"""A model and its groups before an engine has memory for them, and whether those of all ranks are alike. Private."""
