"""OpenTelemetry in and out: spans of other tracers become spans of attempts, and ours go where theirs go."""
