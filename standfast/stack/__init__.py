"""The embedded stack: a Temporal dev server, the control worker and the gateway, kept up on one machine by one
supervisor.

``record`` tells where a stack answers; ``supervisor`` keeps it up; ``shutdown`` takes it down.
"""
