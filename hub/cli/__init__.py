"""The `hub` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line of this process and exit: 0 on success, 1 for a failure, 2 for wrong use, 130 for Ctrl-C."""
    try:
        from hub.cli.app import app  # late, so that importing the package costs nothing

        app()
    except KeyboardInterrupt:  # while the commands are imported
        sys.exit(130)
