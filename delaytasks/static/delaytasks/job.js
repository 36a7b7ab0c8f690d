// Polls for changes of a live job and updates its page.
// If the user has typed something or has the focus in a changed part, the page only shows a message.
'use strict';
document.addEventListener('DOMContentLoaded', () => {
    const TIMEOUT_MS = 10000;
    const status = document.getElementById('dt-live');
    if (status) {
        poll();
    }

    async function poll() {
        for (let live = true; live;) {
            await pause();
            try {
                const url = `${status.dataset.url}?${new URLSearchParams({mark: status.dataset.mark})}`;
                const response = await fetch(url, {
                    headers: {Accept: 'application/json'},
                    cache: 'no-store',
                    signal: AbortSignal.timeout(TIMEOUT_MS),
                });
                if (response.redirected || [401, 403, 404].includes(response.status)) {
                    showChanged(); // after a reload the server shows the login page or the reason
                    return;
                }
                if (response.ok) {
                    const job = await response.json();
                    live = job.live;
                    if ('now' in job && !show(job)) {
                        return;
                    }
                }
            } catch {
                // The server is not reachable: try again.
            }
        }
    }

    // Waits for the polling interval, and until the page is visible.
    async function pause() {
        await new Promise((done) => setTimeout(done, Number(status.dataset.everyMs)));
        while (document.hidden) {
            await new Promise((done) => document.addEventListener('visibilitychange', done, {once: true}));
        }
    }

    // Updates the page. Returns false if that would disturb the user.
    function show(job) {
        const parts = new Map([[document.getElementById('dt-now'), job.now]]);
        parts.set(document.getElementById('dt-timeline'), job.timeline);
        for (const [name, text] of Object.entries(job.fields)) {
            const field = document.querySelector(`.field-${name} .readonly`);
            if (field && !sameText(field, text)) {
                parts.set(field, text);
            }
        }
        if (hasInput() || [...parts.keys()].some((part) => part.contains(document.activeElement))) {
            showChanged();
            return false;
        }
        const open = openDetails();
        parts.forEach((text, part) => {
            part.innerHTML = text; // from our own templates, which escape stored values
        });
        restoreDetails(open);
        document.dispatchEvent(new Event('delaytasks:shown'));
        status.dataset.mark = job.mark;
        status.textContent = job.says;
        return true;
    }

    // Ignores times, which the page shows in another zone than the server.
    function sameText(field, text) {
        const other = document.createElement('template');
        other.innerHTML = text;
        const textWithoutTimes = (node) => {
            const copy = node.cloneNode(true);
            copy.querySelectorAll('time').forEach((time) => time.replaceWith(time.dateTime));
            return copy.textContent.trim();
        };
        return textWithoutTimes(field) === textWithoutTimes(other.content);
    }

    function hasInput() {
        return [...document.querySelectorAll('.dt-act input:not([type=hidden]), .dt-act option')].some((each) =>
            each.tagName === 'OPTION' ? each.selected !== each.defaultSelected : each.value !== each.defaultValue);
    }

    // Entries are only added at the top, so the index from the bottom identifies an entry.
    const entries = () => [...document.querySelectorAll('#dt-timeline li')].reverse();

    function openDetails() {
        return entries().map((entry) => entry.querySelector('details')?.open);
    }

    function restoreDetails(open) {
        entries().forEach((entry, index) => {
            const details = entry.querySelector('details');
            if (details && open[index]) {
                details.open = true;
            }
        });
    }

    function showChanged() {
        const link = document.createElement('a');
        link.href = '';
        link.textContent = status.dataset.reload;
        status.classList.replace('visually-hidden', 'dt-changed');
        status.replaceChildren(status.dataset.changed, ' ', link);
    }
});
