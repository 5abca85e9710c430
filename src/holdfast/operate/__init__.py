"""Running it: what operators see and do."""
