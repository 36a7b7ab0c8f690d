"""The HTTP side, an app of its own: leave it out of INSTALLED_APPS and nothing of it is imported."""
