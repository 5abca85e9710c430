"""Running agents: claim, run, watch, record. What a run is for is told by whoever hands the agent over."""
