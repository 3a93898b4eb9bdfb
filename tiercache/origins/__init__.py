"""Origins: the stores that hold the truth."""
