"""The conformance suite: what every backend promises, checked in the same way for our own and third-party plugins.

`hub check-plugin NAME` and `pytest --hub-backend NAME` run it; from Python, use `suite.check_backend`.
Nothing here imports torch until a backend is examined, which happens in child processes.
"""
