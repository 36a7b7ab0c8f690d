"""The data pipeline: Spark applications that analyse, archive and load more jobs than the database alone handles well.

The package does not import Django. From the rest of delaytasks it imports only modules without Django: states,
validators, exceptions, clock, deprecation and the package calendars. Start reading at __main__.py.
"""
