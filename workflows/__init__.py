"""Temporal workflows: deterministic code that decides and waits, and leaves the world to the activities."""

from workflows.deploy import DeployWorkflow
from workflows.deprecate import DeprecateWorkflow
from workflows.retry import RetryWorkflow
from workflows.validate import ValidateWorkflow

ALL = (DeployWorkflow, RetryWorkflow, ValidateWorkflow, DeprecateWorkflow)
"""Every workflow type that a control worker serves."""
