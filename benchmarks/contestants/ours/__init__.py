"""The measured Django project: the example project with handlers that do as little as the form of a burst wants."""
