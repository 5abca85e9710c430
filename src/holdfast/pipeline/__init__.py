"""The loop as plain calls over durable steps: run, collect, learn, prove, promote, improve."""
