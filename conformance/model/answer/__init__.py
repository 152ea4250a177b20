"""What the results of a check say, in words."""
