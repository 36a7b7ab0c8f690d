"""Benchmarks of the data pipeline by number of rows, against DuckDB and PostgreSQL."""
