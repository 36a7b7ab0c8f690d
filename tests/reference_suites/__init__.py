"""The test suites of the reference backends of Django's Tasks, run against ours: `make reference-suites`."""
