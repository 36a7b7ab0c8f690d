"""`make screenshots`: starts the whole shop, gives it a lively day, and takes the pictures of the README.

OUT=folder says where to (docs/images). Needs Debian's chromium; for the Chinese picture a font that has the
characters (fonts-wqy-microhei).
"""

import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from project.run.preflight import find_free_port
from tests.support.browser import chromium, expect, open_browser, open_context
from tests.support.servers import wait_until

BASE = Path(__file__).resolve().parents[2]
WIDE, TALL, NARROW = 1280, 860, 390
MOST_BYTES = 180_000  # of a picture in its full colours
JOBS, BOARD = "/admin/delaytasks/job/", "/admin/delaytasks/board/"


def main() -> int:
    """0, or 1 after one sentence about what is missing."""
    out = Path(os.environ.get("OUT") or BASE / "docs" / "images")
    try:
        chromium()
    except RuntimeError as missing:
        print(missing, file=sys.stderr)
        return 1
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as var, shop(Path(var)) as (site, password):
        join(Path(var))
        with open_browser() as browser:
            Studio(browser, site, password, out).take_all()
    return 0


@contextmanager
def shop(var: Path) -> Iterator[tuple[str, str]]:
    """A `make run` of its own: its address and the admin's password."""
    env = {**os.environ, "VAR_DIR": str(var), "PORT": str(find_free_port()), "SHOP_SEED": "7"}
    for name in ("DATABASE_URL", "REDIS_URL", "CELERY_BROKER_URL", "ORDERS"):
        env.pop(name, None)
    command = [sys.executable, "-m", "project.run"]
    run = subprocess.Popen(command, cwd=BASE, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert run.stdout is not None
    said = []
    try:
        for line in run.stdout:
            said.append(line)
            if found := re.search(r"Admin: (http://\S+)/admin/  login: admin, password: (\S+)", line):
                yield found[1], found[2]
                break
        else:
            raise RuntimeError("`make run` did not start:\n" + "".join(said))
    finally:
        run.terminate()
        run.communicate(timeout=90)


def join(var: Path) -> None:
    """This process is one of the shop's, as manage.py would be."""
    os.environ["VAR_DIR"] = str(var)
    os.environ["REDIS_URL"] = (var / "run" / "redis_url").read_text().strip()
    os.environ["DJANGO_SETTINGS_MODULE"] = "project.settings"
    import django

    django.setup()


class Studio:
    """One browser, one site, and what is done for each picture."""

    def __init__(self, browser: Any, site: str, password: str, out: Path) -> None:
        self.browser, self.site, self.password, self.out = browser, site, password, out
        self.page = open_context(browser).new_page()
        self.rng = random.Random(7)

    def take_all(self) -> None:
        from . import screenshot_data

        self.dark(False)
        screenshot_data.remember(self.rng)
        screenshot_data.promise(self.rng)
        dead = screenshot_data.kill_one()
        self.visit_shop()
        self.log_in()
        self.sidebar(False)
        self.board()
        self.job(dead.pk)
        self.topics()
        screenshot_data.put_in_every_state()
        self.jobs()
        self.phone(dead.pk)
        self.chinese()
        self.bulk()

    # The pictures

    def visit_shop(self) -> None:
        """Three orders, one whose money comes back; then the lessons and tickets."""
        from delaytasks import reschedule
        from project.shop.models import Order

        self.look(TALL, "/?keep=900")
        for place, buttons in ((0, ("pay", "back")), (2, ("pay",)), (1, ())):
            self.order(place, buttons)
        placed = Order.objects.filter(customer__name__startswith="Guest").latest("pk")
        self.look(TALL, "/?keep=120")
        self.order(3, ())
        reschedule("order.close", placed.key, delay=12 * 60 + 34)
        expect(self.page.locator(f"#order-{placed.pk} .clock")).to_contain_text("12:3")
        self.page.locator("#others .order").first.wait_for()
        self.page.set_viewport_size({"width": WIDE, "height": 2000})
        for kind in ("lesson", "ticket"):
            self.page.locator(f"#upcoming .order[data-state={kind}]").first.wait_for()
        self.page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
        image = self.shot()
        self.keep("shop", image.crop((0, 0, WIDE, self.edge("#upcoming", "bottom") + 24)))

    def order(self, place: int, then: tuple[str, ...]) -> None:
        """One of a product; then the buttons of its card, one after the other."""
        cards = self.page.locator("#mine .order")
        before = cards.count()
        self.page.locator(".tile button").nth(place).click()
        expect(cards).to_have_count(before + 1)
        for name in then:
            button = cards.first.locator(f"button[id^={name}]")
            button.click()
            expect(button).to_have_count(0)
            self.page.wait_for_load_state()

    def board(self) -> None:
        self.take_board("board")
        self.dark(True)
        self.take_board("board-dark")
        self.dark(False)

    def take_board(self, name: str) -> None:
        """Down to the end of the second row of charts, when all is counted."""
        self.look(1400, BOARD)
        self.settle_board()
        image = self.shot()
        self.keep(name, image.crop((0, 0, WIDE, min(image.height, self.edge("#dt-chart-late", "bottom") + 12))))

    def edge(self, selector: str, side: str) -> int:
        """Where an element begins or ends, in pixels."""
        return round(self.page.locator(selector).first.evaluate(f"e => e.getBoundingClientRect().{side}"))

    def settle_board(self) -> None:
        self.page.locator(".dt-board[data-state=fresh]").wait_for()
        expect(self.page.locator(".dt-board")).not_to_contain_text("none yet", timeout=90_000)  # the first sweep
        self.page.locator("#dt-chart-minutes .dt-news li").first.wait_for()  # the herd of the next hour
        herd = re.compile(r"^[^+]*\b4\d,\d{3}\b[^+]*$")  # a + would mean: still being counted
        expect(self.page.locator("#dt-chart-hours .dt-news")).to_have_text(herd)  # of the day

    def job(self, pk: int) -> None:
        self.look(2400, f"{JOBS}{pk}/change/")
        self.settle_times()
        image, top, bottom = self.shot(), self.edge(".field-attempt", "top"), self.edge(".dt-timeline", "bottom")
        self.keep("job", image.crop((0, 0, WIDE, top - 50)))
        self.keep("dead", image.crop((0, top - 50, WIDE, bottom + 12)))

    def topics(self) -> None:
        self.look(440, "/admin/delaytasks/topic/")
        self.take("topics")

    def jobs(self) -> None:
        self.look(TALL, JOBS)
        self.settle_times()
        self.take("jobs")

    def phone(self, pk: int) -> None:
        """Three pages as wide as a phone, beside each other."""
        desk, shots = self.page, []
        phone = {"viewport": {"width": NARROW, "height": TALL}, "is_mobile": True}
        self.page = open_context(self.browser, storage_state=desk.context.storage_state(), **phone).new_page()
        for path in (JOBS, f"{JOBS}{pk}/change/", BOARD):
            self.page.goto(self.site + path)
            if path == BOARD:
                self.settle_board()
            else:
                self.settle_times()
            shots.append(self.shot())
        self.page.context.close()
        self.page = desk
        gap = 24
        whole = Image.new("RGB", (NARROW * len(shots) + gap * (len(shots) - 1), TALL), "#d5dade")
        for n, shot in enumerate(shots):
            whole.paste(shot, (n * (NARROW + gap), 0))
        self.keep("phone", whole)

    def chinese(self) -> None:
        self.page.context.add_cookies([{"name": "django_language", "value": "zh-hans", "url": self.site}])
        self.take_board("board-chinese")
        self.page.context.clear_cookies(name="django_language")

    def bulk(self) -> None:
        """Forty thousand are postponed; the picture is taken when a part is done."""
        self.look(560, JOBS + "all/?topic=review.ask&state=delayed")
        self.page.locator("input[name=what][value=postpone]").click()
        self.page.locator("input[name=amount]").fill("2")
        self.page.locator("input[name=reason]").fill("The mail provider is closed until eleven")
        self.page.locator(".dt-submit input").click()
        bar = self.page.locator("#dt-bar")
        wait_until(lambda: bar.evaluate("bar => bar.value / bar.max") > 0.12, seconds=60, what="a part to be done")
        self.take("bulk")

    # How they are taken

    def log_in(self) -> None:
        self.look(TALL, "/admin/login/?next=/admin/")
        self.page.locator("#id_username").fill("admin")
        self.page.locator("#id_password").fill(self.password)
        self.page.locator("input[type=submit]").click()
        self.page.locator("#user-tools").wait_for()

    def look(self, height: int, path: str) -> None:
        """At a page, in a window of this height."""
        self.page.set_viewport_size({"width": WIDE, "height": height})
        self.page.goto(self.site + path)

    def sidebar(self, is_open: bool) -> None:
        word = "true" if is_open else "false"
        self.page.evaluate(f"localStorage.setItem('django.admin.navSidebarIsOpen', '{word}')")

    def dark(self, is_dark: bool) -> None:
        self.page.emulate_media(color_scheme="dark" if is_dark else "light", reduced_motion="reduce")

    def settle_times(self) -> None:
        expect(self.page.locator(".dt-zone")).to_contain_text("this browser")

    def shot(self) -> Image.Image:
        return Image.open(BytesIO(self.page.screenshot())).convert("RGB")

    def take(self, name: str) -> None:
        self.keep(name, self.shot())

    def keep(self, name: str, image: Image.Image) -> None:
        path = self.out / f"{name}.png"
        image.save(path, optimize=True)
        if path.stat().st_size > MOST_BYTES:  # text and flat areas lose little
            image.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(path, optimize=True)
        shown = path.relative_to(BASE) if path.is_relative_to(BASE) else path
        print(f"{shown}  {path.stat().st_size / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    sys.exit(main())
