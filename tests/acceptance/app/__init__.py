"""A Django app whose handlers leave a row for each time they ran, and misbehave on request."""
