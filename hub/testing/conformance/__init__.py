"""The conformance suite: what every backend promises, checked the same way for our own plugins and everyone else's.

`hub check-plugin NAME` and `pytest --hub-backend NAME` run it, and from Python `suite.check_backend`.
Nothing here imports torch until a backend is examined, and that happens in child processes.
"""
