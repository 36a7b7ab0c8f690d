"""A Django app whose handlers store a row per run, and some of which misbehave."""
