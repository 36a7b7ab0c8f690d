"""How fast the data pipeline answers as rows grow, beside DuckDB and PostgreSQL itself."""
