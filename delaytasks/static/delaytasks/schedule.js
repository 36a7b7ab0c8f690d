/* Shows the next ten runs of the times in the form of a schedule, or what is wrong with them, before they are saved.

   Without this script the form shows the next runs of the times that are saved. */
"use strict";

{
    const TIMES = [
        "tz", "cron", "every", "rrule", "delay", "period", "repeat", "start_at_0", "start_at_1", "gap", "overlap",
    ];
    const WAIT_MS = 300; // after a key, until the server is asked
    let asked = 0;

    const show = async (form, place) => {
        asked += 1;
        const own = asked;
        const data = new FormData(form);
        const query = new URLSearchParams(TIMES.map((name) => [name, data.get(name) ?? ""]));
        const answer = await fetch(`${place.dataset.url}?${query}`, { headers: { Accept: "application/json" } });
        if (!answer.ok || own !== asked) {
            return; // a later question has been asked meanwhile
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
        form.addEventListener("input", (event) => {
            if (TIMES.includes(event.target.name)) {
                clearTimeout(timer);
                timer = setTimeout(() => show(form, place), WAIT_MS);
            }
        });
    });
}
