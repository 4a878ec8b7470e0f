"""What is looked at before an engine has its memory. Private."""
