"""Renders a captured terminal as an SVG: ``python docs/images/render.py CAPTURE OUTPUT --title TITLE``.

The picture of the README is a real run, captured with its colours::

    tmux -f /dev/null new-session -d -s picture -x 124 -y 60 "make quickstart; sleep 600"
    tmux capture-pane -t picture -p -e -S - > capture.ansi       # once it has finished
    python docs/images/render.py capture.ansi docs/images/quickstart.svg --title "make quickstart"

API keys in it are covered, and the home directory of whoever ran it becomes ``~``.
"""

import argparse
import io
import re
from pathlib import Path

from rich.ansi import AnsiDecoder
from rich.console import Console
from rich.terminal_theme import TerminalTheme

THEME = TerminalTheme(
    background=(24, 27, 34),
    foreground=(212, 216, 224),
    normal=[
        (24, 27, 34),
        (240, 113, 120),
        (126, 211, 127),
        (229, 192, 96),
        (97, 175, 239),
        (198, 146, 233),
        (86, 205, 219),
        (212, 216, 224),
    ],
)
KEY = re.compile(r"sf-[A-Za-z0-9_-]{20,}")
FONTS = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"


def render(captured: str, *, title: str, width: int, home: str) -> str:
    """The SVG of a capture, without fonts from elsewhere."""
    covered = KEY.sub(lambda key: "sf-" + "•" * 12, captured.replace(home, "~") if home else captured)
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for line in AnsiDecoder().decode(covered.rstrip()):  # styles go on over the ends of lines
        console.print(line, no_wrap=True, overflow="crop")
    svg = console.export_svg(title=title, theme=THEME, unique_id="terminal")
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    return re.sub(r"font-family: [^;]+;", f"font-family: {FONTS};", svg)


def main() -> None:
    """Read a capture, write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("capture", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--title", required=True)
    parser.add_argument("--width", type=int, default=124, help="columns (default: %(default)s)")
    parser.add_argument("--home", default=str(Path.home()), help="shown as ~ (default: %(default)s)")
    given = parser.parse_args()
    text = given.capture.read_text(encoding="utf-8")
    given.output.write_text(render(text, title=given.title, width=given.width, home=given.home), encoding="utf-8")


if __name__ == "__main__":
    main()
