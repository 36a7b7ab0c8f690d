"""The data pipeline: questions about jobs that grow past one machine, answered by Spark.

Stands beside the rest: it knows the states and its own schemas, and nothing of Django. Start at run.py.
"""
