"""The launcher: one process per rank that starts an engine, watches it, keeps its logs and ends it completely.

It speaks to the rest of Standfast through the attempt directory alone (see `workers.launcher.protocol`) and uses
nothing but Python's standard library, from 3.9 on, so that it runs inside any image.
"""

VERSION = "1"
