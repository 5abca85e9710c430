"""Evidence: estimates with intervals, from matrices of scores."""
