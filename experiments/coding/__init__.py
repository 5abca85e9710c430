"""Code to repair: known-good functions are broken on purpose, so that the smallest repair is known exactly.

`known` (the functions), `functions` (what is asked of one), `breakage` (how one is broken), `tasks` (what is left after
checking), `sandbox` with `sandbox_supervisor` and `trial` (where foreign code runs), `redteam` (patches that are
minimal, too large or dishonest, on purpose), `score` (what a patch earns), `chooser` and `experiment` (what is learnt
from that).
"""
