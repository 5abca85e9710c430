"""How much more a change did than it had to, and whether it worked on the check instead of on the task."""
