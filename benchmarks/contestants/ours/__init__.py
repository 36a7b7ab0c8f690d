"""The measured Django project: the example project with minimal handlers for each form of a burst."""
