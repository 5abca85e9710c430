"""The command line: one function a command, one file a group; what is heavy is imported inside the commands."""
