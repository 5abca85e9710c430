"""Texts for people in lines as wide as their terminal; what somebody copies is never broken in the middle.

Errors, warnings and hints of all floors go through `say`. Tables and the pages of commands are the command line's.
"""

from __future__ import annotations

import re
import shutil
import sys
from contextlib import suppress
from textwrap import TextWrapper

WIDTH = 79
# What somebody copies stays on one line: a short quotation, a command of ours with its words and options, an install.
QUOTED = r"(?<![\w'])'[^'\n]{1,70}'(?!\w)|`[^`\n]{1,70}`"
VALUE = r"(?!--)\S*[\w/'\"\]]"
OPTIONS = rf"(?: --[a-z-]+(?: {VALUE})?| [A-Z]{{2,}}\b| (?=\S*[-@/.\d]){VALUE})*"
COMMAND = rf"\bholdfast(?: [a-z]+){{1,3}}{OPTIONS}|\bpip install \S+"
WHOLE = re.compile(f"{QUOTED}|{COMMAND}")
JOINED = "\0"  # in the place of a space that is no place for a line to end


def folded(text: str, indent: str = "", hanging: str = "", width: int = WIDTH) -> list[str]:
    """A text in lines of 80 columns, all but the first with `hanging` more before them; paths, codes and commands stay
    whole."""
    wrapper = TextWrapper(width, indent, indent + hanging, break_long_words=False, break_on_hyphens=False)
    joined = WHOLE.sub(lambda match: match.group().replace(" ", JOINED), text)
    return [line.replace(JOINED, " ") for line in wrapper.wrap(joined)]


def printable(line: str) -> str:
    """A line that does nothing to a terminal but appear."""
    return "".join(letter if letter.isprintable() else "�" for letter in line)


def say(text: str) -> None:
    """An error, a warning or a hint on stderr, in lines as wide as the terminal, whatever the text holds."""
    wide = shutil.get_terminal_size().columns  # 80 where nobody knows
    with suppress(OSError):  # nobody there to read it, or no room for it
        print("\n".join(map(printable, folded(text, hanging="  ", width=wide))), file=sys.stderr, flush=True)
