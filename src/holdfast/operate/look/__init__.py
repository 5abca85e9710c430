"""What there is to see in a store, as plain data: one function for each panel, and nothing is changed by looking."""
