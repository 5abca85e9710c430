"""The nouns of Holdfast: frozen records and the rules they keep. No I/O."""
