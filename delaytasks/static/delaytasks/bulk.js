// The page that asks what to do with many jobs, and the page that shows how far it is. Both work without this.
'use strict';
{
    const PATIENCE_MS = 10000;

    // A button that is pressed twice means once. Whoever comes back to the page may press it again.
    for (const form of document.querySelectorAll('form.dt-bulk-form')) {
        form.addEventListener('submit', (event) => {
            if (form.dataset.sent) {
                event.preventDefault();
            }
            form.dataset.sent = 'yes';
        });
        window.addEventListener('pageshow', () => {
            delete form.dataset.sent;
            nameWhatIsMeant(form);
        });
        form.addEventListener('change', () => nameWhatIsMeant(form));
    }

    // The button says what it will do: "Cancel 2,000 jobs".
    function nameWhatIsMeant(form) {
        const chosen = form.querySelector('.dt-radio input:checked');
        if (chosen) {
            const question = chosen.closest('.dt-radio').dataset.question;
            form.querySelector('#dt-question').textContent = question;
            form.querySelector('.dt-submit input').value = question;
        }
    }

    const change = document.getElementById('dt-change');
    if (change && document.getElementById('dt-stop')) {
        follow();
    }

    async function follow() {
        for (;;) {
            await rest();
            try {
                const answer = await fetch(change.dataset.url, {
                    headers: {Accept: 'application/json'},
                    cache: 'no-store',
                    signal: AbortSignal.timeout(PATIENCE_MS),
                });
                if (answer.redirected || [401, 403, 404].includes(answer.status)) {
                    window.location.reload(); // the server says better than we could what has become of the right to look
                    return;
                }
                if (!answer.ok) {
                    throw new Error(answer.status);
                }
                const progress = await answer.json();
                show(progress);
                if (!progress.under_way) {
                    return;
                }
            } catch {
                say(change.dataset.lost);
            }
        }
    }

    // For a moment, and as long as nobody looks.
    async function rest() {
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
        for (const [place, outcome] of progress.outcomes.entries()) {
            showOutcome(outcome, place);
        }
        document.getElementById('dt-outcomes').hidden = progress.outcomes.length === 0;
        if (!progress.under_way) {
            removeStop();
        }
        if (['failed', 'stopped'].includes(progress.state)) {
            window.location.reload(); // for the button to go on, and the error, whole and folded
        }
        say(progress.says);
    }

    // A screen reader reads out what changes here: so it changes only where there is something new to say.
    function say(text) {
        const says = document.getElementById('dt-says');
        if (says.textContent !== text) {
            says.textContent = text;
        }
    }

    function removeStop() {
        const stop = document.getElementById('dt-stop');
        if (stop.contains(document.activeElement)) {
            document.getElementById('dt-says').focus();
        }
        stop.remove();
    }

    // In place: a link that somebody has just reached by keyboard stays where it is.
    function showOutcome(outcome, place) {
        const body = document.querySelector('#dt-outcomes tbody');
        let row = Array.from(body.rows).find((each) => each.dataset.outcome === outcome.outcome);
        if (!row) {
            row = newRow(outcome);
        }
        if (body.rows[place] !== row) {
            body.insertBefore(row, body.rows[place] || null);
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
