/* Live charts, drawn by uPlot in the colours of the page, each with a table. board.js provides the data. */
'use strict';

const delaytasksCharts = (() => {
    const CUT_AT = 4; // times the highest bar that is not a herd
    const INTEGERS = [...Array(12).keys()].flatMap((power) => [1, 2, 5].map((digit) => digit * 10 ** power));

    const make = (name, text = '', className = '') => {
        const element = document.createElement(name);
        element.textContent = text;
        element.className = className;
        return element;
    };

    // Sets the text only if it differs: keeps selections, and screen readers stay silent.
    const write = (element, text) => {
        if (element.textContent !== text) {
            element.textContent = text;
        }
    };

    /* The colours of the page, for the canvas. A probe element resolves light-dark() and the admin's variables. */
    class Colours {
        #board;
        #cache = new Map();

        constructor(board) {
            this.#board = board;
        }

        of(name) {
            if (!this.#cache.has(name)) {
                const probe = make('span', '', `dt-probe dt-c-${name}`);
                this.#board.append(probe);
                this.#cache.set(name, getComputedStyle(probe).color);
                probe.remove();
            }
            return this.#cache.get(name);
        }

        onChange(redraw) {
            const changed = () => {
                this.#cache.clear();
                redraw();
            };
            new MutationObserver(changed).observe(document.documentElement, {attributeFilter: ['data-theme', 'class']});
            window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', changed);
        }
    }

    class Chart {
        #section;
        #colours;
        #words;
        #plot;
        #tip;
        #fullHeight;
        #graph = null;
        #shape = '';
        #data = null;

        constructor(section, colours, words) {
            this.#section = section;
            this.#colours = colours;
            this.#words = words;
            this.#plot = section.querySelector('.dt-plot');
            this.#tip = section.querySelector('.dt-tip');
            this.#fullHeight = section.querySelector('.dt-tall input');
            this.#fullHeight?.addEventListener('change', () => this.#graph?.setData(this.#columns()));
            new ResizeObserver(() => this.#graph?.setSize(this.#size())).observe(this.#plot);
            section.querySelector('details').addEventListener('toggle', () => this.#table());
        }

        show(data) {
            this.#data = data;
            write(this.#find('.dt-notes'), data.notes.join(' '));
            this.#plot.setAttribute('aria-label', data.summary);
            this.#legend();
            this.#news();
            this.#table();
            if (this.#fullHeight) {
                this.#fullHeight.closest('.dt-tall').hidden = !data.herds.length;
            }
            const shape = `${data.labels.length} ${data.series.map((each) => each.name)}`;
            if (shape !== this.#shape) {
                this.#graph?.destroy();
                this.#graph = new uPlot(this.#options(), this.#columns(), this.#plot);
                this.#shape = shape;
            } else {
                this.#graph.setData(this.#columns());
                this.#graph.redraw(true, true); // the labels of the axis change even if its range does not
            }
            this.#point();
        }

        unknown(text) {
            write(this.#find('.dt-notes'), text);
        }

        redraw() {
            this.#graph?.redraw();
        }

        #find(selector) {
            return this.#section.querySelector(selector);
        }

        #size() {
            return {width: this.#plot.clientWidth, height: this.#plot.clientHeight};
        }

        get #isLines() {
            return 'ladder' in this.#data;
        }

        // The columns for uPlot; the first has the positions on the x axis.
        #columns() {
            const {series, labels, herds} = this.#data;
            const positions = labels.map((_, index) => index);
            if (this.#isLines) {
                const atLeastOne = (ms) => (ms === null ? null : Math.max(ms, 1)); // the scale has no 0
                return [positions, ...series.map((each) => each.values.map(atLeastOne)).reverse()];
            }
            if (herds) {
                const marked = new Set(herds.map(([index]) => index));
                const select = (isHerd) => series[0].values.map((n, index) => (marked.has(index) === isHerd ? n : null));
                return [positions, select(false), select(true)];
            }
            return [positions, ...this.#stacked()];
        }

        // Stacked bars: the sums are drawn first, the lower bars over them.
        #stacked() {
            const sums = [];
            for (const {values} of this.#data.series) {
                const below = sums.at(-1);
                sums.push(values.map((n, index) => n + (below ? below[index] : 0)));
            }
            return sums.reverse();
        }

        #drawn() {
            const names = this.#data.herds ? ['due', 'herd'] : this.#data.series.map(({name}) => name).reverse();
            if (this.#isLines) {
                return names.map((name, index) => ({
                    stroke: () => this.#colours.of(name),
                    width: index === 0 ? 1 : 2,
                    dash: index === 0 ? [4, 3] : undefined,
                    points: {size: 5, fill: () => this.#colours.of(name)},
                }));
            }
            return names.map((name) => ({
                stroke: () => this.#colours.of(name),
                fill: () => this.#colours.of(name),
                width: 0,
                points: {show: false},
                paths: uPlot.paths.bars({size: [0.78, 48]}),
            }));
        }

        #options() {
            const text = () => this.#colours.of('text');
            const line = {stroke: () => this.#colours.of('grid'), width: 1};
            const font = `12px ${getComputedStyle(this.#plot).fontFamily}`;
            const compact = new Intl.NumberFormat(document.documentElement.lang || undefined, {
                notation: 'compact', maximumFractionDigits: 1,
            });
            const numbers = {incrs: INTEGERS, values: (_, splits) => splits.map((n) => compact.format(n))};
            const ladder = {
                splits: (graph, axis, low, high) => this.#steps().filter((ms) => ms >= low && ms <= high),
                filter: (graph, splits) => splits,
                values: (graph, splits) => splits.map((ms) => new Map(this.#data.ladder).get(ms)),
            };
            return {
                ...this.#size(),
                legend: {show: false},
                cursor: {y: false, points: {show: this.#isLines}, drag: {setScale: false, x: false, y: false}},
                scales: {
                    x: {time: false, range: () => [-0.6, this.#data.labels.length - 0.4]},
                    y: this.#isLines
                        ? {distr: 3, range: (graph, low, high) => [1, Math.max(100, (high || 1) * 2)]}
                        : {range: (graph, low, high) => [0, Math.max(4, this.#scaleEnd(high || 0)) * 1.15]},
                },
                axes: [
                    {
                        stroke: text, font, size: 28, gap: 4, grid: {show: false}, ticks: {...line, size: 4},
                        splits: (graph) => this.#ticks(graph).map(([index]) => index),
                        values: (graph) => this.#ticks(graph).map(([, label]) => label),
                    },
                    {
                        stroke: text, font, gap: 4, grid: line, ticks: {show: false}, space: 32,
                        size: (graph, values) => this.#axisWidth(graph, font, values),
                        ...(this.#isLines ? ladder : numbers),
                    },
                ],
                series: [{}, ...this.#drawn()],
                hooks: {setCursor: [() => this.#point()], draw: [(graph) => this.#mark(graph, font)]},
            };
        }

        // The end of the scale. Herds are cut, as they would dwarf all other bars, unless full height is selected.
        #scaleEnd(highest) {
            const {herds = [], series} = this.#data;
            const marked = new Set(herds.map(([index]) => index));
            const usual = Math.max(...series[0].values.filter((_, index) => !marked.has(index)), 0);
            const cut = herds.length && usual && !this.#fullHeight?.checked ? Math.max(CUT_AT * usual, 10) : Infinity;
            return Math.min(highest, cut);
        }

        // The labels of the axis that fit without overlap.
        #ticks(graph) {
            const room = 46 * this.#data.labels.length / (graph.over.clientWidth || this.#plot.clientWidth);
            let next = -Infinity;
            return this.#data.ticks.filter(([index]) => index >= next && (next = index + room));
        }

        #steps() {
            return this.#data.ladder.map(([ms]) => ms);
        }

        #axisWidth(graph, font, values) {
            graph.ctx.font = font;
            return Math.ceil(Math.max(24, ...(values || []).map((text) => graph.ctx.measureText(text).width))) + 12;
        }

        // Draws numbers above herds and a plus above incomplete counts, without overlaps.
        #mark(graph, font) {
            const {herds = [], more = [], series} = this.#data;
            const labelled = new Map([...more.map((index) => [index, '+']), ...herds]);
            const {ctx, bbox: {left, top, width}} = graph;
            const end = (index) => Math.max(graph.valToPos(series[0].values[index], 'y', true), top + 16 * devicePixelRatio);
            ctx.save();
            ctx.font = font.replace('12px', `600 ${12 * devicePixelRatio}px`);
            ctx.textAlign = 'center';
            const byHeight = [...labelled].sort(([a], [b]) => series[0].values[b] - series[0].values[a]);
            for (const [index] of byHeight) { // before all numbers: a cut clears what is above it
                if (series[0].values[index] > graph.scales.y.max) {
                    this.#cut(graph, graph.valToPos(index, 'x', true), end(index));
                }
            }
            const taken = [];
            for (const [index, text] of byHeight) {
                const half = ctx.measureText(text).width / 2;
                const x = Math.min(Math.max(graph.valToPos(index, 'x', true), left + half), left + width - half);
                if (!taken.some(([from, to]) => x - half < to && x + half > from)) {
                    taken.push([x - half, x + half]);
                    ctx.fillStyle = this.#colours.of(text === '+' ? 'text' : 'herd');
                    ctx.fillText(text, x, end(index) - 4 * devicePixelRatio);
                }
            }
            ctx.restore();
        }

        // A bar beyond the scale ends below its number, with a jagged cut.
        #cut(graph, x, y) {
            const {ctx, bbox: {top, width}} = graph;
            const half = width / this.#data.labels.length / 2;
            const step = 4 * devicePixelRatio;
            ctx.fillStyle = this.#colours.of('page');
            ctx.fillRect(x - half, top - 2, 2 * half, y - top + 2);
            ctx.beginPath();
            ctx.moveTo(x - half, y + 3 * step);
            ctx.lineTo(x + half, y + step);
            ctx.lineTo(x + half, y + 2.2 * step);
            ctx.lineTo(x - half, y + 4.2 * step);
            ctx.fill();
        }

        // The tooltip of the position under the pointer.
        #point() {
            const index = this.#graph?.cursor.idx;
            this.#tip.hidden = index === null || index === undefined || index >= this.#data.labels.length;
            if (this.#tip.hidden) {
                return;
            }
            const {labels, series, texts, remarks = {}} = this.#data;
            const lines = series.map((each, n) => make('div', `${each.label}: ${texts[n][index] || '–'}`));
            if (remarks[index]) {
                lines.push(make('div', remarks[index]));
            }
            this.#tip.replaceChildren(make('strong', labels[index]), ...lines);
            const x = this.#graph.over.offsetLeft + this.#graph.valToPos(index, 'x');
            const onTheRight = x < this.#plot.clientWidth / 2;
            this.#tip.style.insetInlineStart = onTheRight ? `${x + 12}px` : 'auto';
            this.#tip.style.insetInlineEnd = onTheRight ? 'auto' : `${this.#plot.clientWidth - x + 12}px`;
        }

        #legend() {
            const legend = this.#find('.dt-legend');
            if (legend.children.length !== this.#data.legend.length) {
                legend.replaceChildren(...this.#data.legend.map(([name, label]) => {
                    const entry = make('span');
                    entry.append(make('i', '', `dt-swatch dt-c-${name}`), label);
                    return entry;
                }));
            }
        }

        #news() {
            const news = this.#find('.dt-news');
            const texts = this.#data.news || [];
            if ([...news.children].map((each) => each.textContent).join('\n') !== texts.join('\n')) {
                news.replaceChildren(...texts.map((text) => make('li', text)));
            }
        }

        #table() {
            if (!this.#data || !this.#find('details').open) {
                return;
            }
            const {labels, series, texts, remarks} = this.#data;
            const heads = [this.#words.time, ...series.map((each) => each.label), ...(remarks ? [this.#words.remark] : [])];
            const rows = labels.map((label, index) => [
                label, ...texts.map((column) => column[index]), ...(remarks ? [remarks[index] || ''] : []),
            ]);
            fill(this.#find('thead'), [heads], 'th');
            fill(this.#find('tbody'), rows, 'td');
        }
    }

    // Updates the rows in place, to keep the scroll position of a long table.
    function fill(body, rows, name) {
        while (body.rows.length > rows.length) {
            body.deleteRow(-1);
        }
        rows.forEach((texts, n) => {
            const row = body.rows[n] || body.insertRow();
            texts.forEach((text, index) => {
                if (!row.cells[index]) {
                    const cell = make(index === 0 ? 'th' : name);
                    if (cell.tagName === 'TH') {
                        cell.scope = name === 'th' ? 'col' : 'row';
                    }
                    row.append(cell);
                }
                write(row.cells[index], text);
            });
        });
    }

    return {Chart, Colours, make, write};
})();
