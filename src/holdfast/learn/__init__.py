"""Learning: from trajectories to moved parameters, and why a rollout taught nothing."""
