"""Judges: what they are asked, how far they may be believed, and what they say together."""
