/* The board: asks for its numbers every few seconds and shows them. All words and numbers come from the server.

   It rests while nobody looks, goes on by itself after an error and says how old its numbers are. */
'use strict';
{
    const PATIENCE_MS = 15000;
    const LONGEST_PAUSE_MS = 60000;
    const {Chart, Colours, make, write} = delaytasksCharts;

    function showTiles(list, tiles) {
        const wanted = new Set(tiles.map((tile) => tile.name));
        for (const item of [...list.children]) {
            if (!wanted.has(item.dataset.name)) {
                item.remove();
            }
        }
        tiles.forEach((tile, place) => {
            let item = list.querySelector(`[data-name="${tile.name}"]`);
            if (!item) {
                item = make('li', '', 'dt-tile');
                item.dataset.name = tile.name;
                item.append(make('span', '', 'dt-tile-label'), make(tile.url ? 'a' : 'span', '', 'dt-tile-value'));
                item.append(make('span', '', 'dt-tile-said'), make('span', '', 'dt-tile-note'));
            }
            if (list.children[place] !== item) {
                list.insertBefore(item, list.children[place] || null);
            }
            const [label, value, said, note] = item.children;
            item.dataset.level = tile.level;
            write(label, tile.label);
            write(value, tile.value);
            write(said, tile.said);
            write(note, tile.notes.join(' · '));
            if (tile.url) {
                value.href = tile.url;
            }
        });
    }

    function line(cells, kinds) {
        const row = document.createElement('tr');
        cells.forEach((text, place) => {
            const cell = make(kinds(place), text);
            if (cell.tagName === 'TH') {
                cell.scope = kinds === headings ? 'col' : 'row';
            }
            row.append(cell);
        });
        return row;
    }
    const headings = () => 'th';

    function showPast(section, note, past) {
        const told = JSON.stringify(past);
        if (section.dataset.told === told) {
            return; // so that what somebody marked stays marked
        }
        section.dataset.told = told;
        section.hidden = !past?.rows.length;
        write(note, past ? past.note : '');
        section.querySelector('thead').replaceChildren(line(past ? past.head : [], headings));
        const kinds = (place) => (place === 0 ? 'th' : 'td');
        section.querySelector('tbody').replaceChildren(...(past ? past.rows : []).map((cells) => line(cells, kinds)));
    }

    class Board {
        #page = document.querySelector('.dt-board');
        #colours = new Colours(this.#page);
        #charts = new Map();
        #topic = document.getElementById('dt-topic');
        #stop = document.getElementById('dt-board-stop');
        #at = '';
        #failed = 0;
        #standing = false;
        #timer = 0;
        #asking = null;

        constructor() {
            for (const section of this.#page.querySelectorAll('.dt-chart')) {
                this.#charts.set(section.id.replace('dt-chart-', ''), new Chart(section, this.#colours, config.words));
            }
            this.#colours.onChange(() => this.#charts.forEach((chart) => chart.redraw()));
            this.#topic.form.addEventListener('submit', (event) => event.preventDefault());
            this.#topic.addEventListener('change', () => this.#choose());
            this.#stop.addEventListener('click', () => this.#standStill());
            document.addEventListener('visibilitychange', () => this.#goOn());
            window.addEventListener('online', () => this.#goOn());
            this.#ask();
        }

        #choose() {
            const query = this.#topic.value ? `?${new URLSearchParams({topic: this.#topic.value})}` : location.pathname;
            history.replaceState(null, '', query);
            this.#ask();
        }

        #standStill() {
            this.#standing = !this.#standing;
            write(this.#stop, this.#standing ? config.words.go : config.words.stop);
            this.#sayWhen();
            this.#goOn();
        }

        #goOn() {
            if (document.hidden || this.#standing) {
                clearTimeout(this.#timer);
                this.#asking?.abort();
            } else {
                this.#ask();
            }
        }

        async #ask() {
            clearTimeout(this.#timer);
            this.#asking?.abort();
            const asking = this.#asking = new AbortController();
            const query = this.#topic.value ? `?${new URLSearchParams({topic: this.#topic.value})}` : '';
            try {
                const answer = await fetch(config.url + query, {
                    headers: {Accept: 'application/json'},
                    cache: 'no-store',
                    signal: AbortSignal.any([asking.signal, AbortSignal.timeout(PATIENCE_MS)]),
                });
                if (this.#at && (answer.redirected || [401, 403, 404].includes(answer.status))) {
                    location.reload(); // the server says better than we could what has become of the right to look
                    return;
                }
                if (!answer.ok) {
                    this.#miss(config.words.failed.replace('{status}', answer.status));
                } else {
                    this.#show(await answer.json());
                }
            } catch (error) {
                if (asking.signal.aborted) {
                    return; // asked again meanwhile, or nobody wants to know any more
                }
                console.warn(error);
                this.#miss(this.#at ? config.words.lost : config.words.never);
            }
            if (!document.hidden && !this.#standing) {
                const pause = Math.min(config.every_ms * 2 ** Math.max(0, this.#failed - 1), LONGEST_PAUSE_MS);
                this.#timer = setTimeout(() => this.#ask(), pause);
            }
        }

        #show(numbers) {
            this.#failed = 0;
            this.#at = numbers.at;
            this.#page.dataset.state = 'fresh';
            write(document.getElementById('dt-board-error'), '');
            this.#sayWhen();
            showTiles(document.getElementById('dt-tiles'), numbers.tiles);
            for (const [name, chart] of this.#charts) {
                if (numbers.charts[name]) {
                    chart.show(numbers.charts[name]);
                } else {
                    chart.unknown(config.words.unknown);
                }
            }
            showPast(document.getElementById('dt-past'), document.getElementById('dt-past-note'), numbers.past);
        }

        #miss(text) {
            this.#failed += 1;
            this.#page.dataset.state = 'old';
            write(document.getElementById('dt-board-error'), text.replace('{time}', this.#at || '–'));
        }

        #sayWhen() {
            const text = this.#standing ? config.words.stopped : config.words.updated;
            write(document.getElementById('dt-board-updated'), this.#at ? text.replace('{time}', this.#at) : '');
        }
    }

    const config = {};
    document.addEventListener('DOMContentLoaded', () => {
        Object.assign(config, JSON.parse(document.getElementById('dt-board-config').textContent));
        new Board();
    });
}
