/* Shows times in the browser's time zone. The titles keep the server's times, with the zone.

   Without this script, or if the project activates a zone per user, the server's times remain.
   The cookie tells the server in which zone "today" is. */
"use strict";

{
    const twoDigits = (number) => String(number).padStart(2, "0");

    const local = (moment, milliseconds) => {
        const date = `${moment.getFullYear()}-${twoDigits(moment.getMonth() + 1)}-${twoDigits(moment.getDate())}`;
        const time = [moment.getHours(), moment.getMinutes(), moment.getSeconds()].map(twoDigits).join(":");
        return `${date} ${time}${milliseconds ? `.${String(moment.getMilliseconds()).padStart(3, "0")}` : ""}`;
    };

    const setCookie = (name, zone, path) => {
        const secure = location.protocol === "https:" ? "; secure" : "";
        document.cookie = `${name}=${zone}; path=${path}; max-age=31536000; samesite=lax${secure}`;
    };

    const show = () => {
        const notice = document.querySelector(".dt-zone[data-text]");
        const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
        if (!notice || !/^[\w+\/-]+$/.test(zone || "")) {
            return;
        }
        setCookie(notice.dataset.cookie, zone, notice.dataset.path);
        for (const element of document.querySelectorAll("time.dt-time")) {
            element.textContent = local(new Date(element.dateTime), element.textContent.includes("."));
        }
        notice.textContent = notice.dataset.text.replace("{zone}", zone);
    };

    document.addEventListener("DOMContentLoaded", show);
    document.addEventListener("delaytasks:shown", show); // a script added times to the page
}
