"""Style sheet of the pages of reports and audits, with colours for light and for dark."""

CSS = """
:root { color-scheme: light dark; --ink: #1c2530; --quiet: #5b6875; --paper: #ffffff; --card: #f4f6f8; --rule: #d9dee4;
  --finished: #2f7ed8; --retried: #e0a100; --cancelled: #8b98a5; --snoozed: #7a6ad8; --died: #c8322b; --before: #5b6875;
  --p50: #2f7ed8; --p95: #e0a100; --p99: #c8322b; --due: #2f7ed8; --herd: #c8322b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e9ee; --quiet: #9aa7b4; --paper: #14181d; --card: #1d232a;
  --rule: #333c46; --finished: #5a9ff0; --retried: #f0be45; --cancelled: #7b8896; --snoozed: #a193f5; --died: #f0665f;
  --before: #9aa7b4; --p50: #5a9ff0; --p95: #f0be45; --p99: #f0665f; --due: #5a9ff0; --herd: #f0665f; } }
body { margin: 0 auto; padding: 1.5rem; max-width: 74rem; background: var(--paper); color: var(--ink);
  font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .4rem; }
p { margin: .3rem 0; } .quiet { color: var(--quiet); }
.tiles { display: flex; flex-wrap: wrap; gap: .7rem; margin: 1.2rem 0; padding: 0; list-style: none; }
.tiles li { background: var(--card); border-radius: .5rem; padding: .6rem .9rem; flex: 1 1 7rem; }
.tiles b { display: block; font-size: 1.4rem; } .bad { color: var(--died); }
.chart { width: 100%; min-width: 38rem; height: auto; display: block; } .grid { stroke: var(--rule); stroke-width: 1; }
.chart text { fill: var(--quiet); font-size: 11px; } .chart .y { text-anchor: end; }
.chart .x { text-anchor: middle; }
.chart path { fill: none; stroke-width: 1.6; stroke-linecap: round; stroke-linejoin: round; }
.finished { fill: var(--finished); } .retried { fill: var(--retried); } .cancelled { fill: var(--cancelled); }
.snoozed { fill: var(--snoozed); } .died { fill: var(--died); } .due { fill: var(--due); } .herd { fill: var(--herd); }
.before { stroke: var(--before); stroke-dasharray: 4 3; } .p50 { stroke: var(--p50); } .p95 { stroke: var(--p95); }
.p99 { stroke: var(--p99); } .spark { width: 6rem; height: 1.5rem; } .spark polyline { fill: none;
  stroke: var(--finished); stroke-width: 1.5; }
.key span { margin-right: 1rem; white-space: nowrap; }
.key i { display: inline-block; width: .8rem; height: .8rem; margin-right: .35rem; border-radius: .15rem;
  vertical-align: -1px; }
.scroll { overflow-x: auto; } .words { text-align: left; white-space: normal; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .45rem; text-align: right; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } th { color: var(--quiet); font-weight: 500; }
section + section { margin-top: 3rem; border-top: 2px solid var(--rule); padding-top: 1.5rem; }
@media print { body { max-width: none; } }
"""
