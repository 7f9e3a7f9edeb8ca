"""The command `hub`."""

from __future__ import annotations


def main() -> None:
    """Run the command line of this process and exits: 0 where all went well, 2 for a named error, 130 for Ctrl-C."""
    from hub.cli.app import app  # late, so that importing the package is free

    app()
