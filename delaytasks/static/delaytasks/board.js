/* The board: fetches its numbers every few seconds and shows them. The server formats all texts and numbers.

   It pauses while the page is hidden, retries after an error and shows the age of its numbers. */
'use strict';
{
    const TIMEOUT_MS = 15000;
    const MAX_PAUSE_MS = 60000;
    const {Chart, Colours, make, write} = delaytasksCharts;

    function showAdvice(place, advice) {
        const json = JSON.stringify(advice);
        if (place.dataset.shown === json) {
            return; // keeps the focus
        }
        place.dataset.shown = json;
        place.replaceChildren();
        if (advice) {
            const runbook = make(advice.url ? 'a' : 'span', '', 'dt-tile-runbook');
            if (advice.url) {
                runbook.href = advice.url;
            }
            // A path may be longer than the tile is wide: it breaks after "/" and "#".
            runbook.append(...advice.runbook.split(/(?<=[/#])/).flatMap((part) => [part, document.createElement('wbr')]));
            place.append(`${advice.text} `, runbook);
        }
    }

    function showTiles(list, tiles) {
        const names = new Set(tiles.map((tile) => tile.name));
        for (const item of [...list.children]) {
            if (!names.has(item.dataset.name)) {
                item.remove();
            }
        }
        tiles.forEach((tile, index) => {
            let item = list.querySelector(`[data-name="${tile.name}"]`);
            if (!item) {
                item = make('li', '', 'dt-tile');
                item.dataset.name = tile.name;
                item.append(make('span', '', 'dt-tile-label'), make(tile.url ? 'a' : 'span', '', 'dt-tile-value'));
                item.append(make('span', '', 'dt-tile-level'), make('span', '', 'dt-tile-note'));
                item.append(make('span', '', 'dt-tile-advice'));
            }
            if (list.children[index] !== item) {
                list.insertBefore(item, list.children[index] || null);
            }
            const [label, value, level, note, advice] = item.children;
            item.dataset.level = tile.level;
            write(label, tile.label);
            write(value, tile.value);
            write(level, tile.level_text);
            write(note, tile.notes.join(' · '));
            if (tile.url) {
                value.href = tile.url;
            }
            showAdvice(advice, tile.advice);
        });
    }

    function tableRow(cells, tagOf) {
        const row = document.createElement('tr');
        cells.forEach((text, index) => {
            const cell = make(tagOf(index), text);
            if (cell.tagName === 'TH') {
                cell.scope = tagOf === headings ? 'col' : 'row';
            }
            row.append(cell);
        });
        return row;
    }
    const headings = () => 'th';

    function showTable(section, note, table) {
        const json = JSON.stringify(table);
        if (section.dataset.shown === json) {
            return; // keeps the selection of text
        }
        section.dataset.shown = json;
        section.hidden = !table?.rows.length;
        write(note, table ? table.note : '');
        section.querySelector('thead').replaceChildren(tableRow(table ? table.head : [], headings));
        const tagOf = (index) => (index === 0 ? 'th' : 'td');
        section.querySelector('tbody').replaceChildren(...(table ? table.rows : []).map((cells) => tableRow(cells, tagOf)));
    }

    class Board {
        #page = document.querySelector('.dt-board');
        #colours = new Colours(this.#page);
        #charts = new Map();
        #topic = document.getElementById('dt-topic');
        #stop = document.getElementById('dt-board-stop');
        #at = '';
        #failures = 0;
        #stopped = false;
        #timer = 0;
        #request = null;

        constructor() {
            for (const section of this.#page.querySelectorAll('.dt-chart')) {
                this.#charts.set(section.id.replace('dt-chart-', ''), new Chart(section, this.#colours, config.words));
            }
            this.#colours.onChange(() => this.#charts.forEach((chart) => chart.redraw()));
            this.#topic.form.addEventListener('submit', (event) => event.preventDefault());
            this.#topic.addEventListener('change', () => this.#selectTopic());
            this.#stop.addEventListener('click', () => this.#toggle());
            document.addEventListener('visibilitychange', () => this.#resume());
            window.addEventListener('online', () => this.#resume());
            this.#fetch();
        }

        #selectTopic() {
            const query = this.#topic.value ? `?${new URLSearchParams({topic: this.#topic.value})}` : location.pathname;
            history.replaceState(null, '', query);
            this.#fetch();
        }

        #toggle() {
            this.#stopped = !this.#stopped;
            write(this.#stop, this.#stopped ? config.words.go : config.words.stop);
            this.#showTime();
            this.#resume();
        }

        #resume() {
            if (document.hidden || this.#stopped) {
                clearTimeout(this.#timer);
                this.#request?.abort();
            } else {
                this.#fetch();
            }
        }

        async #fetch() {
            clearTimeout(this.#timer);
            this.#request?.abort();
            const request = this.#request = new AbortController();
            const query = this.#topic.value ? `?${new URLSearchParams({topic: this.#topic.value})}` : '';
            try {
                const response = await fetch(config.url + query, {
                    headers: {Accept: 'application/json'},
                    cache: 'no-store',
                    signal: AbortSignal.any([request.signal, AbortSignal.timeout(TIMEOUT_MS)]),
                });
                if (this.#at && (response.redirected || [401, 403, 404].includes(response.status))) {
                    location.reload(); // the server shows the login page or the reason
                    return;
                }
                if (!response.ok) {
                    this.#showError(config.words.failed.replace('{status}', response.status));
                } else {
                    this.#show(await response.json());
                }
            } catch (error) {
                if (request.signal.aborted) {
                    return; // replaced by a newer request, or the page is hidden
                }
                console.warn(error);
                this.#showError(this.#at ? config.words.lost : config.words.never);
            }
            if (!document.hidden && !this.#stopped) {
                const pause = Math.min(config.every_ms * 2 ** Math.max(0, this.#failures - 1), MAX_PAUSE_MS);
                this.#timer = setTimeout(() => this.#fetch(), pause);
            }
        }

        #show(numbers) {
            this.#failures = 0;
            this.#at = numbers.at;
            this.#page.dataset.state = 'fresh';
            write(document.getElementById('dt-board-error'), '');
            this.#showTime();
            showTiles(document.getElementById('dt-tiles'), numbers.tiles);
            for (const [name, chart] of this.#charts) {
                if (numbers.charts[name]) {
                    chart.show(numbers.charts[name]);
                } else {
                    chart.unknown(config.words.unknown);
                }
            }
            for (const name of ['past', 'schedules']) {
                showTable(document.getElementById(`dt-${name}`), document.getElementById(`dt-${name}-note`), numbers[name]);
            }
        }

        #showError(text) {
            this.#failures += 1;
            this.#page.dataset.state = 'old';
            write(document.getElementById('dt-board-error'), text.replace('{time}', this.#at || '–'));
        }

        #showTime() {
            const text = this.#stopped ? config.words.stopped : config.words.updated;
            write(document.getElementById('dt-board-updated'), this.#at ? text.replace('{time}', this.#at) : '');
        }
    }

    const config = {};
    document.addEventListener('DOMContentLoaded', () => {
        Object.assign(config, JSON.parse(document.getElementById('dt-board-config').textContent));
        new Board();
    });
}
