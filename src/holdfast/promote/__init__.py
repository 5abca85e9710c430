"""Whether a version may go into service, how far, and back."""
