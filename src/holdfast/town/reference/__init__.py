"""The rules once more, in plain Python, for tests: what the kernels do must be what this does."""
