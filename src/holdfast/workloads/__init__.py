"""Where a world meets the pipeline: agents with their tasks and their scores."""
