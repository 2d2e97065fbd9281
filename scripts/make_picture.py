"""Draw docs/figures/terminal.svg: real commands, run now, as a terminal shows them."""

import os
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "figures" / "terminal.svg"
COMMANDS = (
    "cove exec 'whoami; ls /home; curl -sS example.com'",
    "cove exec --timeout 1 'echo started; (setsid sleep 1000 &); sleep 1000'; echo $?",
    "cove exec --allow packages 'pip download -q --no-deps six && ls *.whl'",
    "cove run -c 'import math; math.factorial(20)'",
)


def main() -> None:
    console = Console(record=True, width=88, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for command in COMMANDS:
        console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
        done = subprocess.run(
            ["bash", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, check=False
        )
        console.print(Text.from_ansi(done.stdout.decode().rstrip()))
        console.print()
    svg = console.export_svg(title="cove")
    # A picture loads nothing from elsewhere: the viewer's own font of fixed width will do.
    svg = (
        re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
        .replace("Fira Code,", "")
        .replace("Fira Code", "monospace")
    )
    PICTURE.write_text(svg)


if __name__ == "__main__":
    main()
