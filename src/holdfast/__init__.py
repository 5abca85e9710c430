"""Holdfast: agents that get better, and never slip back."""
