/* Shows the next ten runs of the times in the form of a schedule, or what is wrong with them, before they are saved.

   Without this script the form shows the next runs of the times that are saved. */
"use strict";

{
    const TIMES = [
        "tz", "cron", "every", "rrule", "delay", "period", "repeat", "start_at_0", "start_at_1", "gap", "overlap",
    ];
    const WAIT_MS = 300; // after a key, until the server is asked
    let asked = "";

    const query = (form) => {
        const data = new FormData(form);
        return String(new URLSearchParams(TIMES.map((name) => [name, data.get(name) ?? ""])));
    };

    const show = async (times, place) => {
        const answer = await fetch(`${place.dataset.url}?${times}`, { headers: { Accept: "application/json" } });
        if (times !== asked) {
            return; // a later question has been asked meanwhile
        }
        if (!answer.ok) {
            asked = ""; // ask again at the next event
            return;
        }
        const { lines } = await answer.json();
        place.replaceChildren(...lines.flatMap((line) => [line, document.createElement("br")]));
    };

    document.addEventListener("DOMContentLoaded", () => {
        const place = document.querySelector(".dt-next-runs");
        const form = place?.closest("form");
        if (!form?.elements.cron) {
            return; // a schedule that is only shown
        }
        let timer = 0;
        const ask = () => {
            const times = query(form);
            if (times !== asked) {
                asked = times;
                clearTimeout(timer);
                timer = setTimeout(() => show(times, place), WAIT_MS);
            }
        };
        asked = query(form);
        form.addEventListener("input", ask);
        // Django's calendar and clock set a value and then the focus. They send no other event.
        form.addEventListener("focusin", ask);
    });
}
