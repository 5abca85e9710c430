"""Our own workloads: agents with their tasks and their scores, and the town. They use the seams like any user."""
