// A live job's page follows the job: when it has changed elsewhere the page shows it as it is now.
// Nothing that somebody has typed and no place that somebody has reached by keyboard is taken away: then it only says so.
'use strict';
document.addEventListener('DOMContentLoaded', () => {
    const PATIENCE_MS = 10000;
    const says = document.getElementById('dt-live');
    if (says) {
        follow();
    }

    async function follow() {
        for (let live = true; live;) {
            await rest();
            try {
                const address = `${says.dataset.url}?${new URLSearchParams({mark: says.dataset.mark})}`;
                const answer = await fetch(address, {
                    headers: {Accept: 'application/json'},
                    cache: 'no-store',
                    signal: AbortSignal.timeout(PATIENCE_MS),
                });
                if (answer.redirected || [401, 403, 404].includes(answer.status)) {
                    sayThatItChanged(); // the server says better than we could what has become of the right to look
                    return;
                }
                if (answer.ok) {
                    const job = await answer.json();
                    live = job.live;
                    if ('now' in job && !show(job)) {
                        return;
                    }
                }
            } catch {
                // The server is away: it is asked again.
            }
        }
    }

    // For a moment, and as long as nobody looks.
    async function rest() {
        await new Promise((done) => setTimeout(done, Number(says.dataset.everyMs)));
        while (document.hidden) {
            await new Promise((done) => document.addEventListener('visibilitychange', done, {once: true}));
        }
    }

    // Whether it could be shown.
    function show(job) {
        const parts = new Map([[document.getElementById('dt-now'), job.now]]);
        parts.set(document.getElementById('dt-timeline'), job.timeline);
        for (const [name, text] of Object.entries(job.fields)) {
            const field = document.querySelector(`.field-${name} .readonly`);
            if (field && !sameText(field, text)) {
                parts.set(field, text);
            }
        }
        if (somethingWasTyped() || [...parts.keys()].some((part) => part.contains(document.activeElement))) {
            sayThatItChanged();
            return false;
        }
        const open = unfolded();
        parts.forEach((text, part) => {
            part.innerHTML = text; // it comes from our own templates, which escape what is stored
        });
        unfold(open);
        document.dispatchEvent(new Event('delaytasks:shown'));
        says.dataset.mark = job.mark;
        says.textContent = job.says;
        return true;
    }

    // Times aside, which stand there in another zone than the server's.
    function sameText(field, text) {
        const other = document.createElement('template');
        other.innerHTML = text;
        const bare = (node) => {
            const copy = node.cloneNode(true);
            copy.querySelectorAll('time').forEach((time) => time.replaceWith(time.dateTime));
            return copy.textContent.trim();
        };
        return bare(field) === bare(other.content);
    }

    function somethingWasTyped() {
        return [...document.querySelectorAll('.dt-act input:not([type=hidden]), .dt-act option')].some((each) =>
            each.tagName === 'OPTION' ? each.selected !== each.defaultSelected : each.value !== each.defaultValue);
    }

    // What happened is only ever added to, at the top: so an entry is known by its place from the bottom.
    const entries = () => [...document.querySelectorAll('#dt-timeline li')].reverse();

    function unfolded() {
        return entries().map((entry) => entry.querySelector('details')?.open);
    }

    function unfold(open) {
        entries().forEach((entry, place) => {
            const folded = entry.querySelector('details');
            if (folded && open[place]) {
                folded.open = true;
            }
        });
    }

    function sayThatItChanged() {
        const link = document.createElement('a');
        link.href = '';
        link.textContent = says.dataset.reload;
        says.classList.replace('visually-hidden', 'dt-changed');
        says.replaceChildren(says.dataset.changed, ' ', link);
    }
});
