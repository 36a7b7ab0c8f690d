"""The Procrastinate app, imported by the worker processes and the driver."""

import os

from procrastinate import App, PsycopgConnector

from benchmarks.contestants import rows, sink

connector = PsycopgConnector(conninfo=os.environ["BENCH_POSTGRES"], min_size=4, max_size=12)
app = App(connector=connector)


@app.task
async def noop(n: int, due: int) -> None:
    sink.ran(n, due)


@app.task
async def update(n: int, due: int) -> None:
    sink.ran(n, due)
    async with connector.pool.connection() as connection:  # one transaction
        await connection.execute(rows.UPDATE, [n])
