"""What an attempt was worth: signals, sheets, diffs, judges and safety. It measures, and never learns or decides."""
