"""A Django app with the models of these tests."""
