"""A capacity model: the servers and processes that a number of jobs needs, from measured costs."""
