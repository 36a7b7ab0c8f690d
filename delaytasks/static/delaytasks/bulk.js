// The confirmation page and the progress page of a bulk change. Both work without this script.
'use strict';
{
    const TIMEOUT_MS = 10000;

    // Ignore a second click. After going back to the page, the form can be submitted again.
    for (const form of document.querySelectorAll('form.dt-bulk-form')) {
        form.addEventListener('submit', (event) => {
            if (form.dataset.sent) {
                event.preventDefault();
            }
            form.dataset.sent = 'yes';
        });
        window.addEventListener('pageshow', () => {
            delete form.dataset.sent;
            updateTitle(form);
        });
        form.addEventListener('change', () => updateTitle(form));
    }

    // The heading and the button say what will be done: "Cancel 2,000 jobs".
    function updateTitle(form) {
        const chosen = form.querySelector('.dt-radio input:checked');
        if (chosen) {
            const question = chosen.closest('.dt-radio').dataset.question;
            form.querySelector('#dt-question').textContent = question;
            form.querySelector('.dt-submit input').value = question;
        }
    }

    const change = document.getElementById('dt-change');
    if (change && document.getElementById('dt-stop')) {
        poll();
    }

    async function poll() {
        for (;;) {
            await pause();
            try {
                const response = await fetch(change.dataset.url, {
                    headers: {Accept: 'application/json'},
                    cache: 'no-store',
                    signal: AbortSignal.timeout(TIMEOUT_MS),
                });
                if (response.redirected || [401, 403, 404].includes(response.status)) {
                    window.location.reload(); // the server shows the login page or the reason
                    return;
                }
                if (!response.ok) {
                    throw new Error(response.status);
                }
                const progress = await response.json();
                show(progress);
                if (!progress.under_way) {
                    return;
                }
            } catch {
                showStatus(change.dataset.lost);
            }
        }
    }

    // Waits for the polling interval, and until the page is visible.
    async function pause() {
        await new Promise((done) => setTimeout(done, Number(change.dataset.everyMs)));
        while (document.hidden) {
            await new Promise((done) => document.addEventListener('visibilitychange', done, {once: true}));
        }
    }

    function show(progress) {
        const bar = document.getElementById('dt-bar');
        bar.value = progress.position;
        bar.textContent = progress.done;
        document.getElementById('dt-done').textContent = progress.done;
        change.dataset.state = progress.state;
        for (const [index, outcome] of progress.outcomes.entries()) {
            showOutcome(outcome, index);
        }
        document.getElementById('dt-outcomes').hidden = progress.outcomes.length === 0;
        if (!progress.under_way) {
            removeStop();
        }
        if (['failed', 'stopped'].includes(progress.state)) {
            window.location.reload(); // shows the button to continue, and the error
        }
        showStatus(progress.says);
    }

    // Screen readers announce each change of this text, so it is only set if it differs.
    function showStatus(text) {
        const status = document.getElementById('dt-says');
        if (status.textContent !== text) {
            status.textContent = text;
        }
    }

    function removeStop() {
        const stop = document.getElementById('dt-stop');
        if (stop.contains(document.activeElement)) {
            document.getElementById('dt-says').focus();
        }
        stop.remove();
    }

    // Updates rows in place, so that a focused link keeps the focus.
    function showOutcome(outcome, index) {
        const body = document.querySelector('#dt-outcomes tbody');
        let row = Array.from(body.rows).find((each) => each.dataset.outcome === outcome.outcome);
        if (!row) {
            row = newRow(outcome);
        }
        if (body.rows[index] !== row) {
            body.insertBefore(row, body.rows[index] || null);
        }
        row.querySelector('.dt-number').textContent = outcome.count;
        row.querySelector('.dt-quiet').textContent = outcome.rest;
        const list = row.querySelector('ul');
        for (const job of outcome.jobs.slice(list.children.length)) {
            list.append(newJob(job));
        }
    }

    function newRow(outcome) {
        const row = document.createElement('tr');
        row.dataset.outcome = outcome.outcome;
        const word = document.createElement('th');
        word.scope = 'row';
        word.textContent = outcome.word;
        const count = document.createElement('td');
        count.className = 'dt-number';
        const which = document.createElement('td');
        which.className = 'dt-which';
        const rest = document.createElement('span');
        rest.className = 'dt-quiet';
        which.append(document.createElement('ul'), ' ', rest);
        row.append(word, count, which);
        return row;
    }

    function newJob(job) {
        const item = document.createElement('li');
        if (!job.url) {
            item.textContent = job.text;
            return item;
        }
        const link = document.createElement('a');
        link.href = job.url;
        link.title = job.title;
        link.textContent = job.text;
        item.append(link);
        return item;
    }
}
