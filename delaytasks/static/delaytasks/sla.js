/* Counts down the working time of service levels. Without this script the time at which the page was sent remains.

   data-left-ms is the working time left at data-now-ms, by the database's clock. data-open has the next open times as
   pairs of ms since 1970; it is empty while a clock stands still. data-breached is the badge from zero on. */
"use strict";

{
    const twoDigits = (number) => String(number).padStart(2, "0");

    const digits = (ms) => {
        const seconds = Math.floor(Math.abs(ms) / 1000);
        const sign = ms < 0 && seconds ? "-" : "";
        return `${sign}${Math.floor(seconds / 3600)}:${twoDigits(Math.floor(seconds / 60) % 60)}:${twoDigits(seconds % 60)}`;
    };

    const worked = (spans, from, to) =>
        spans.reduce((sum, [opens, closes]) => sum + Math.max(0, Math.min(closes, to) - Math.max(opens, from)), 0);

    const show = (elements, elapsed) => {
        for (const element of elements) {
            const now = Number(element.dataset.nowMs);
            const spans = JSON.parse(element.dataset.open);
            const left = Number(element.dataset.leftMs) - worked(spans, now, now + elapsed);
            const badge = element.previousElementSibling;
            element.textContent = digits(left);
            if (left <= 0 && badge.textContent !== element.dataset.breached) {
                badge.textContent = element.dataset.breached;
                badge.className = "dt-state dt-dead";
            }
        }
    };

    document.addEventListener("DOMContentLoaded", () => {
        const elements = document.querySelectorAll(".dt-sla");
        const loaded = performance.now(); // goes on evenly when the computer's clock is set
        if (elements.length) {
            setInterval(() => show(elements, performance.now() - loaded), 1000);
        }
    });
}
