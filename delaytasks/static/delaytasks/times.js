/* Shows a page's times in the browser's time zone. Their titles keep what the server said, with its zone.

   Without this script, or where the project chose a zone for each person, the server's times stand.
   The cookie tells the server which zone "today" is meant in. */
"use strict";

{
    const two = (number) => String(number).padStart(2, "0");

    const local = (moment, milliseconds) => {
        const date = `${moment.getFullYear()}-${two(moment.getMonth() + 1)}-${two(moment.getDate())}`;
        const time = [moment.getHours(), moment.getMinutes(), moment.getSeconds()].map(two).join(":");
        return `${date} ${time}${milliseconds ? `.${String(moment.getMilliseconds()).padStart(3, "0")}` : ""}`;
    };

    const remember = (name, zone, path) => {
        const secure = location.protocol === "https:" ? "; secure" : "";
        document.cookie = `${name}=${zone}; path=${path}; max-age=31536000; samesite=lax${secure}`;
    };

    const show = () => {
        const notice = document.querySelector(".dt-zone[data-text]");
        const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
        if (!notice || !/^[\w+\/-]+$/.test(zone || "")) {
            return;
        }
        remember(notice.dataset.cookie, zone, notice.dataset.path);
        for (const element of document.querySelectorAll("time.dt-time")) {
            element.textContent = local(new Date(element.dateTime), element.textContent.includes("."));
        }
        notice.textContent = notice.dataset.text.replace("{zone}", zone);
    };

    document.addEventListener("DOMContentLoaded", show);
    document.addEventListener("delaytasks:shown", show); // a script has put other times on the page
}
