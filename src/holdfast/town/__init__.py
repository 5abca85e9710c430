"""A town whose residents live by exact rules. It imports nothing of ours: one door leads here, workloads.townlife."""
