"""Temporal workflows: deterministic code that decides and waits, and leaves the world to the activities."""

from workflows.deploy import DeployWorkflow
from workflows.deprecate import DeprecateWorkflow
from workflows.retry import RetryWorkflow
from workflows.validate import ValidateWorkflow

ALL = (DeployWorkflow, RetryWorkflow, ValidateWorkflow, DeprecateWorkflow)
"""Every workflow type that a control worker serves."""

PASSED_THROUGH = ("standfast", "workflows", "pydantic", "pydantic_core", "annotated_types", "structlog")
"""Modules that workflow code imports as they are: records and pure functions, loaded once and not once per workflow."""
