// The storefront, alive: countdowns by the server's clock, and whatever changed since the last look.
//
// The server makes all the HTML; here is no word for people. A card that is shown is replaced only
// when its data-version has changed, so that nobody loses his place. While the tab is hidden, nothing
// is asked and nothing ticks. Without this file the page works by its forms and links.
"use strict";

const TICK_MS = 200;
const SOON_MS = 500; // between two looks while something that is over waits for its worker,
const SOON_LOOKS = 20; // this often; a topic may be paused, or no worker may be there
const OPEN_MS = 2000; // while something counts down
const IDLE_MS = 10000;
const GIVE_UP_MS = 10000;

const page = document.body;
const offline = document.querySelector(".offline");
const said = document.getElementById("said");

let version = page.dataset.version;
// performance.now() is not moved by whoever sets the clock of this machine.
let clock = { server: Number(page.dataset.now), local: performance.now(), roundTrip: Infinity };
let looks = 0; // in a row, at something that is over
let failures = 0;
let timer;
let ticker;
let asking; // the AbortController of the look that is on its way

const serverNow = () => clock.server + performance.now() - clock.local;

// The answer was made somewhere between question and answer: half a round trip is the error at most.
function setClock(server, sent, received) {
  const roundTrip = received - sent;
  const age = received - clock.local;
  if (roundTrip > clock.roundTrip && age < 30000) return; // what is known is more exact, and still fresh
  clock = { server, local: sent + roundTrip / 2, roundTrip };
}

// Countdowns

function asClock(ms) {
  const seconds = Math.ceil(ms / 1000);
  const two = (number) => String(number).padStart(2, "0");
  const minutes = Math.floor(seconds / 60) % 60;
  const hours = Math.floor(seconds / 3600);
  return hours ? `${hours}:${two(minutes)}:${two(seconds % 60)}` : `${minutes}:${two(seconds % 60)}`;
}

function tick() {
  const now = serverNow();
  let justOver = false;
  for (const card of document.querySelectorAll("[data-due]")) {
    const left = Math.max(0, Number(card.dataset.due) - now);
    const text = asClock(left);
    const shown = card.querySelector(".clock");
    if (shown.textContent !== text) shown.textContent = text;
    const bar = card.querySelector("progress");
    if (bar) bar.value = left;
    const over = left === 0;
    if (over && !("over" in card.dataset)) justOver = true;
    card.toggleAttribute("data-over", over);
  }
  if (justOver && !asking) {
    looks = 0;
    look();
  }
}

// What changed

function fragment(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  return template.content.firstElementChild;
}

// The element that shows this version: the one that is there, or a new one in its place, with the focus if it had it.
function upToDate(id, newVersion, html) {
  const old = document.getElementById(id);
  if (old && old.dataset.version === newVersion) return old;
  const fresh = fragment(html);
  if (!old) return fresh;
  const focused = old.contains(document.activeElement) ? document.activeElement.id : null;
  old.replaceWith(fresh);
  if (old.dataset.state !== fresh.dataset.state) {
    fresh.classList.add("changed");
    if (fresh.closest("#mine")) said.textContent = fresh.dataset.said;
  }
  if (focused !== null) (document.getElementById(focused) || fresh).focus({ preventScroll: true });
  return fresh;
}

function show(answer) {
  for (const piece of answer.pieces) upToDate(...piece);
  for (const [id, items] of Object.entries(answer.lists)) {
    const list = document.getElementById(id);
    const shown = items.map((item) => upToDate(...item));
    for (const gone of [...list.children].filter((child) => !shown.includes(child))) gone.remove();
    shown.forEach((card, place) => {
      if (list.children[place] !== card) list.insertBefore(card, list.children[place] || null);
    });
  }
  version = answer.version;
}

async function look() {
  clearTimeout(timer);
  if (document.hidden) return;
  asking?.abort();
  const mine = (asking = new AbortController());
  const giveUp = setTimeout(() => mine.abort(), GIVE_UP_MS);
  const sent = performance.now();
  try {
    const url = `${page.dataset.address}?since=${encodeURIComponent(version)}`;
    const response = await fetch(url, { signal: mine.signal, cache: "no-store" });
    if (!response.ok) throw new Error(response.statusText);
    const answer = await response.json();
    setClock(answer.now, sent, performance.now());
    if (answer.lists) show(answer);
    failures = 0;
  } catch {
    if (asking === mine && !document.hidden) failures += 1; // otherwise it was we who gave up
  } finally {
    clearTimeout(giveUp);
  }
  if (asking !== mine) return; // another look has taken over
  asking = null;
  offline.hidden = failures < 2;
  tick();
  if (!asking) timer = setTimeout(look, pause());
}

// How long to rest until the next look, in ms.
function pause() {
  if (failures) return Math.min(30000, OPEN_MS * 2 ** (failures - 1));
  looks = document.querySelector("[data-over]") ? looks + 1 : 0;
  if (looks && looks <= SOON_LOOKS) return SOON_MS;
  return document.querySelector("[data-due]") ? OPEN_MS : IDLE_MS;
}

// When

function wake() {
  clearInterval(ticker);
  if (document.hidden) {
    clearTimeout(timer);
    asking?.abort();
    return;
  }
  ticker = setInterval(tick, TICK_MS);
  clock.roundTrip = Infinity; // this machine may have slept
  look();
}

document.addEventListener("visibilitychange", wake);
addEventListener("pageshow", (event) => event.persisted && location.reload()); // "back" shows the old page, sent forms and all

// A second click orders nothing twice.
document.addEventListener("submit", (event) => {
  if (event.target.dataset.sent) event.preventDefault();
  event.target.dataset.sent = "yes";
});

wake();
