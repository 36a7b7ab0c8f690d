// Live updates of the storefront: countdowns by the server's clock, and polling for changes.
//
// The server renders all HTML, so this file contains no texts. A card is replaced only when its data-version
// changes; the visitor keeps focus and scroll position. A hidden tab neither polls nor ticks. Without this
// file, the page works with forms and links.
"use strict";

const TICK_MS = 200;
const EXPIRED_POLL_MS = 500; // while an expired countdown waits for its worker
const MAX_EXPIRED_POLLS = 20; // then poll slower: its topic may be paused or no worker running
const ACTIVE_POLL_MS = 2000; // during a countdown
const IDLE_POLL_MS = 10000;
const MAX_BACKOFF_MS = 30000;
const REQUEST_TIMEOUT_MS = 10000;

const page = document.body;
const offline = document.querySelector(".offline");
const announcement = document.getElementById("announcement");

let version = page.dataset.version;
// performance.now() is independent of changes to the local clock.
let clock = { server: Number(page.dataset.now), local: performance.now(), roundTrip: Infinity };
let expiredPolls = 0; // consecutive polls with an expired countdown
let failures = 0;
let timer;
let ticker;
let pending; // the AbortController of the current request

const serverNow = () => clock.server + performance.now() - clock.local;

// The server read its clock between request and response, so the error is at most half a round trip.
function setClock(server, sent, received) {
  const roundTrip = received - sent;
  const age = received - clock.local;
  if (roundTrip > clock.roundTrip && age < 30000) return; // the current value is more exact and recent enough
  clock = { server, local: sent + roundTrip / 2, roundTrip };
}

// Countdowns

function formatTime(ms) {
  const seconds = Math.ceil(ms / 1000);
  const two = (number) => String(number).padStart(2, "0");
  const minutes = Math.floor(seconds / 60) % 60;
  const hours = Math.floor(seconds / 3600);
  return hours ? `${hours}:${two(minutes)}:${two(seconds % 60)}` : `${minutes}:${two(seconds % 60)}`;
}

function tick() {
  const now = serverNow();
  let newlyExpired = false;
  for (const card of document.querySelectorAll("[data-due]")) {
    const remaining = Math.max(0, Number(card.dataset.due) - now);
    const text = formatTime(remaining);
    const label = card.querySelector(".clock");
    if (label.textContent !== text) label.textContent = text;
    const bar = card.querySelector("progress");
    if (bar) bar.value = remaining;
    const expired = remaining === 0;
    if (expired && !("expired" in card.dataset)) newlyExpired = true;
    card.toggleAttribute("data-expired", expired);
  }
  if (newlyExpired && !pending) {
    expiredPolls = 0;
    poll();
  }
}

// Updates

function parse(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  return template.content.firstElementChild;
}

// Return the element in this version: the existing one, or a new one in its place that takes over the focus.
function update(id, newVersion, html) {
  const old = document.getElementById(id);
  if (old && old.dataset.version === newVersion) return old;
  const fresh = parse(html);
  if (!old) return fresh;
  const focused = old.contains(document.activeElement) ? document.activeElement.id : null;
  old.replaceWith(fresh);
  if (old.dataset.state !== fresh.dataset.state) {
    fresh.classList.add("changed");
    if (fresh.closest("#mine")) announcement.textContent = fresh.dataset.announcement;
  }
  if (focused !== null) (document.getElementById(focused) || fresh).focus({ preventScroll: true });
  return fresh;
}

function render(data) {
  for (const piece of data.pieces) update(...piece);
  for (const [id, items] of Object.entries(data.lists)) {
    const list = document.getElementById(id);
    const cards = items.map((item) => update(...item));
    for (const removed of [...list.children].filter((child) => !cards.includes(child))) removed.remove();
    cards.forEach((card, index) => {
      if (list.children[index] !== card) list.insertBefore(card, list.children[index] || null);
    });
  }
  version = data.version;
}

async function poll() {
  clearTimeout(timer);
  if (document.hidden) return;
  pending?.abort();
  const controller = (pending = new AbortController());
  const timeout = setTimeout(() => controller.abort(), REQUEST_TIMEOUT_MS);
  const sent = performance.now();
  try {
    const url = `${page.dataset.url}?since=${encodeURIComponent(version)}`;
    const response = await fetch(url, { signal: controller.signal, cache: "no-store" });
    if (!response.ok) throw new Error(response.statusText);
    const data = await response.json();
    setClock(data.now, sent, performance.now());
    if (data.lists) render(data);
    failures = 0;
  } catch {
    if (pending === controller && !document.hidden) failures += 1; // do not count requests that this script aborted
  } finally {
    clearTimeout(timeout);
  }
  if (pending !== controller) return; // superseded by another request
  pending = null;
  offline.hidden = failures < 2;
  tick();
  if (!pending) timer = setTimeout(poll, nextPollMs());
}

function nextPollMs() {
  if (failures) return Math.min(MAX_BACKOFF_MS, ACTIVE_POLL_MS * 2 ** (failures - 1));
  expiredPolls = document.querySelector("[data-expired]") ? expiredPolls + 1 : 0;
  if (expiredPolls && expiredPolls <= MAX_EXPIRED_POLLS) return EXPIRED_POLL_MS;
  return document.querySelector("[data-due]") ? ACTIVE_POLL_MS : IDLE_POLL_MS;
}

// Events

function onVisibilityChange() {
  clearInterval(ticker);
  if (document.hidden) {
    clearTimeout(timer);
    pending?.abort();
    return;
  }
  ticker = setInterval(tick, TICK_MS);
  clock.roundTrip = Infinity; // the machine may have been suspended: accept the next server time
  poll();
}

document.addEventListener("visibilitychange", onVisibilityChange);
addEventListener("pageshow", (event) => event.persisted && location.reload()); // "back" restores a page with submitted forms

// Prevent a double click from submitting a form twice.
document.addEventListener("submit", (event) => {
  if (event.target.dataset.sent) event.preventDefault();
  event.target.dataset.sent = "yes";
});

onVisibilityChange();
