"""What a workflow shows in the Temporal UI: its page while it runs, and the same in its memo once it is closed.

The page (the current details) is a query: it needs a control worker that can replay the history, and is blank without
one. The memo is kept with the execution. It costs a history event, so it is written where a workflow ends or comes to
rest, and not with each change.
"""

from temporalio import workflow

from workflows import pages

MEMO_KEY = "last_page"


def show(page: str) -> None:
    """Show a page from now on."""
    workflow.set_current_details(page)


def keep(page: str) -> None:
    """Show a page, and keep it where it can be read without a worker."""
    show(page)
    workflow.upsert_memo({MEMO_KEY: pages.plain(page)})
