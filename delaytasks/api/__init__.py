"""The HTTP API: an optional Django app. Nothing of it is imported unless it is in INSTALLED_APPS."""
