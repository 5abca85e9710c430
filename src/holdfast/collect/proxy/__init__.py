"""The capture proxy: any agent's model calls, passed on byte for byte and kept as spans of its attempt."""
