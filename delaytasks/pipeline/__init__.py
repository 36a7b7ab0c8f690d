"""The data pipeline: Spark applications for tasks about jobs that would be too large for the database alone.

The package does not import Django. From delaytasks it imports only the plain modules states, validators, exceptions
and clock. Start reading at __main__.py.
"""
