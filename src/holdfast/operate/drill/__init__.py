"""Accidents, rehearsed for real on a scratch store, and the evidence of them computed again."""
