"""The published form of a proof: documents that can be computed again from the samples they carry."""
