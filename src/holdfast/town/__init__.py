"""A town whose residents live by exact rules. It imports nothing of ours: one door leads here, workloads.townlife."""

from holdfast.town import hooks as hooks  # registers the hooks that come with the town
