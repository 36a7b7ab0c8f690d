"""A TCP proxy between the processes and a server on loopback, for network faults."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

from tests.support.servers import free_port

CHUNK = 65_536
LOOKS_SECONDS = 0.05  # how often a stalled direction looks whether it may go on


class Proxy:
    """Forwards bytes to the server at `upstream`, a port or a unix socket, and back. It may be changed.

    cut_after      bytes of the next reply to forward before the connection is cut; None: do not cut
    swallows       drop replies: the server has done the work, but the client gets no answer
    delay_seconds  delay of each chunk, in either direction
    stalls         hold all chunks, as a network does that drops every packet; they arrive after heal()
    refuses        close new connections at once, and cut open ones
    """

    def __init__(self, upstream: int | Path) -> None:
        self.upstream, self.port = upstream, free_port()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._open: set[asyncio.StreamWriter] = set()
        self._passing: set[asyncio.Task[None]] = set()
        self.cuts = 0
        self.heal()

    def heal(self) -> None:
        self.cut_after: Callable[[], int | None] = lambda: None
        self.swallows = self.refuses = self.stalls = False
        self.delay_seconds = 0.0

    def cut_all(self) -> None:
        self._loop.call_soon_threadsafe(self._abort_all)

    def _abort_all(self) -> None:
        for writer in self._open:
            writer.transport.abort()

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def _stop(self) -> None:
        self._server.close()
        for task in self._passing:
            task.cancel()
        await asyncio.gather(*self._passing, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            async with contextlib.AsyncExitStack() as stack:
                self._hold(writer, stack)
                if self.refuses:
                    return
                there, back = await self._connect()
                self._hold(back, stack)
                directions = [self._pass(reader, back, reply=False), self._pass(there, writer, reply=True)]
                tasks = [asyncio.create_task(direction) for direction in directions]
                self._passing |= set(tasks)
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                self._passing -= set(tasks)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self.upstream, Path):
            return await asyncio.open_unix_connection(self.upstream)
        return await asyncio.open_connection("127.0.0.1", self.upstream)

    def _hold(self, writer: asyncio.StreamWriter, stack: contextlib.AsyncExitStack) -> None:
        """Abort the connection when the stack is closed, so that both ends see it broken, not closed."""
        self._open.add(writer)
        stack.callback(writer.transport.abort)
        stack.callback(self._open.discard, writer)

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, reply: bool) -> None:
        while piece := await source.read(CHUNK):
            if self.delay_seconds:
                await asyncio.sleep(self.delay_seconds)
            while self.stalls:  # noqa: ASYNC110  another thread sets it, so an asyncio.Event would not do
                await asyncio.sleep(LOOKS_SECONDS)
            if reply and self.swallows:
                continue
            cut = self.cut_after() if reply else None
            sink.write(piece if cut is None else piece[:cut])
            await sink.drain()
            if cut is not None:
                self.cuts += 1
                return
