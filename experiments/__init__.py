"""What a reward does to those who learn from it, measured over several seeds: experiments that are not in the wheel."""
