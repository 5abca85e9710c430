"""Secrets and personal data: detected in text, and replaced by pseudonyms before anything is stored."""
