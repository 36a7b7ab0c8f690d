"""nginx runs with the kit's configuration, in front of a web process that answers 200 to everything."""

import http.client
import http.server
import os
import shutil
import ssl
from collections.abc import Iterator
from threading import Thread

import pytest

from tests.conftest import not_run
from tests.support.servers import Server, free_port

from .kit import DEPLOY, ROOT

CERTIFICATE = ROOT / "tests/support/localhost.pem"
STRANGER = "203.0.113.7"
# nginx takes the caller's address from a header, as behind a load balancer.
MAIN = """
daemon off;
pid {directory}/pid;
error_log stderr;
events {{ }}
http {{
    access_log off;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    set_real_ip_from 127.0.0.1;
    real_ip_header X-Test-Address;
    include {directory}/shop.conf;
}}
"""


class Web(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


class Nginx(Server):
    """The kit's configuration with a free port, a certificate of the tests, and this port of both web processes."""

    name = "nginx"

    def __init__(self, binary: str, web_port: int) -> None:
        super().__init__()
        self.binary, self.port = binary, free_port()
        text = (DEPLOY / "nginx/shop.conf").read_text()
        for old, new in {
            "listen 443 ": f"listen 127.0.0.1:{self.port} ",
            "/etc/ssl/shop.example.pem": str(CERTIFICATE),
            "/etc/ssl/private/shop.example.key": str(CERTIFICATE),
            "127.0.0.1:8001": f"127.0.0.1:{web_port}",
            "127.0.0.1:8002": f"127.0.0.1:{web_port}",
        }.items():
            assert old in text, old
            text = text.replace(old, new)
        (self.directory / "shop.conf").write_text(text)
        (self.directory / "nginx.conf").write_text(MAIN.format(directory=self.directory))

    def start(self) -> None:
        self.spawn([self.binary, "-p", str(self.directory), "-c", str(self.directory / "nginx.conf")])
        assert self.await_answer(), self.log.read_text()

    def answers(self) -> bool:
        try:
            return self.status("/", "127.0.0.1") == 200
        except OSError:
            return False

    def status(self, path: str, address: str) -> int:
        """Return the status of a GET by a client with this address."""
        context = ssl.create_default_context(cafile=str(CERTIFICATE))
        connection = http.client.HTTPSConnection("localhost", self.port, timeout=10, context=context)
        try:
            connection.request("GET", path, headers={"X-Test-Address": address})
            return connection.getresponse().status
        finally:
            connection.close()


@pytest.fixture(scope="module")
def nginx(request: pytest.FixtureRequest) -> Iterator[Nginx]:
    binary = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if binary is None:
        request.config.stash[not_run].add("nginx's configuration, as it is not installed: apt-get install nginx-light")
        pytest.skip("there is no nginx here")
    web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Web)
    Thread(target=web.serve_forever, daemon=True).start()
    with Nginx(binary, web.server_port) as server:
        yield server
    web.shutdown()
    web.server_close()


@pytest.mark.parametrize("address", ["127.0.0.1", "10.1.2.3", "172.31.0.1", "192.168.1.1", "::1", "fd00::1"])
def test_readyz_answers_loopback_and_private_addresses(nginx: Nginx, address: str) -> None:
    assert nginx.status("/readyz", address) == 200


@pytest.mark.parametrize("address", [STRANGER, "172.32.0.1", "2001:db8::1"])
@pytest.mark.parametrize("path", ["/readyz", "/readyz?check=database", "/%72eadyz", "//readyz", "/x/../readyz"])
def test_readyz_refuses_strangers(nginx: Nginx, path: str, address: str) -> None:
    assert nginx.status(path, address) == 403


@pytest.mark.parametrize(("path", "status"), [("/", 200), ("/livez", 200), ("/api/health/", 200), ("/metrics", 404)])
def test_strangers_reach_the_site_and_its_health_but_no_metrics(nginx: Nginx, path: str, status: int) -> None:
    assert nginx.status(path, STRANGER) == status
