"""`python -m hub`: the `hub` command of this Python, when another environment's comes first on the PATH."""

from __future__ import annotations

from hub.cli import main

if __name__ == "__main__":
    main()
