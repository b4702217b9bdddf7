// A page that stays right: events say that something changed, then the page itself is fetched again and morphed into <main>.
// Since the whole page is fetched, no event can be missed, and what the page shows is always one answer of the service.
import { Idiomorph } from "idiomorph";
import { isSignedOut, signIn } from "./api";
import { all, el, isTyping, url } from "./dom";
import { prepareTables } from "./tables";
import { localise, moment } from "./times";
import { isWidget, mountWidgets, refreshWidget } from "./widgets";

/** "still": the page changes no more by itself. */
type State = "connecting" | "live" | "reconnecting" | "offline" | "stale" | "still";

const EVENTS = ["job", "server", "changes"];
const GAP_MS = 1000;
/** Longest pause between two refreshes while events keep coming: many open pages must cost the service little. */
const GAP_MS_MAX = 15_000;
/** A refresh may take this part of the time at most. */
const SHARE_MAX = 0.1;
/** Forecasts and ages change without an event. */
const IDLE_MS = 30_000;
const ACCEPTED_MS = [300, 1200, 3000];
const RETRY_MS_MAX = 30_000;
const FETCH_MS_MAX = 30_000;

let sources: EventSource[] = [];
let topics: string[] = [];
let failures = 0;
/** How often streams were refused since all were open, and when to ask for them again: there may be too many. */
let refused = 0;
let reopenAtMs = 0;
let gapMs = GAP_MS;
let refreshedAtMs = 0;
let freshAt = new Date();
let dueAtMs = Infinity;
let expectedMs: number[] = [];
let timer = 0;
let running: Promise<void> | null = null;

function isDirty(field: Element): boolean {
  if (field instanceof HTMLInputElement) {
    if (field.type === "checkbox" || field.type === "radio") return field.checked !== field.defaultChecked;
    return field.type !== "hidden" && field.value !== field.defaultValue;
  }
  if (field instanceof HTMLTextAreaElement) return field.value !== field.defaultValue;
  return field instanceof HTMLSelectElement && [...field.options].some((option) => option.selected !== option.defaultSelected);
}

/** May the refresh change this node? What the reader types, has opened or selects stays as it is. */
function mayChange(old: Node, fresh: Node): boolean {
  if (isWidget(old) && fresh instanceof Element) {
    refreshWidget(old, fresh);
    return false;
  }
  if (old instanceof HTMLFormElement) {
    const active = document.activeElement;
    return !(old.contains(active) && isTyping(active)) && ![...old.elements].some(isDirty);
  }
  if (old instanceof HTMLInputElement || old instanceof HTMLTextAreaElement || old instanceof HTMLSelectElement) return !isDirty(old);
  if (old instanceof HTMLDialogElement && old.open) return false;
  if (old instanceof Text) {
    const selection = getSelection();
    return !selection || selection.isCollapsed || !selection.containsNode(old, true);
  }
  return true;
}

function morph(text: string): void {
  const page = new DOMParser().parseFromString(text, "text/html");
  const [old, fresh] = [document.querySelector("main"), page.querySelector("main")];
  if (!old || !fresh) return;
  localise(fresh);
  prepareTables(fresh);
  Idiomorph.morph(old, [...fresh.childNodes], {
    morphStyle: "innerHTML",
    callbacks: {
      beforeNodeMorphed: mayChange,
      beforeAttributeUpdated: (name, element) => !(name === "open" && element instanceof HTMLDetailsElement),
    },
  });
  if (page.title) document.title = page.title;
  const token = page.querySelector<HTMLMetaElement>('meta[name="csrf-token"]')?.content;
  if (token) document.querySelector('meta[name="csrf-token"]')?.setAttribute("content", token);
  mountWidgets(old);
}

function show(state: State): void {
  const text: Record<State, string> = {
    connecting: "Connecting",
    live: "Live",
    still: "",
    reconnecting: "Reconnecting",
    offline: `Not connected. This is as of ${moment(freshAt, new Date(), true)}`,
    stale: `Out of date. This is as of ${moment(freshAt, new Date(), true)}`,
  };
  document.body.dataset["state"] = state;
  for (const element of all(document, "[data-live-state]")) {
    if (element.getAttribute("data-live-state") === state) continue;
    element.setAttribute("data-live-state", state);
    element.replaceChildren(...(text[state] ? [el("span", { class: "dot", "aria-hidden": "true" }), el("span", { class: "text" }, text[state])] : []));
    element.title = text[state];
  }
}

/** Seconds between two refreshes that [data-poll] asks for, for what has no events; 0: none are asked for. */
function pollS(): number {
  return Number(document.querySelector<HTMLElement>("[data-poll]")?.dataset["poll"] ?? 0);
}

function settle(): void {
  if (!topics.length && !pollS()) {
    show("still");
    return;
  }
  const open = topics.length ? areOpen() : failures === 0;
  // A service on this machine answers without any network, so the browser's word does not count against an open stream.
  if (open) show(failures > 0 ? "stale" : "live");
  else show(failures >= 2 || !navigator.onLine ? "offline" : "reconnecting");
}

async function refresh(): Promise<void> {
  const startedMs = performance.now();
  let fresh: string | null = null;
  try {
    const response = await fetch(location.href, {
      headers: { Accept: "text/html" },
      credentials: "same-origin",
      cache: "no-cache",
      signal: AbortSignal.timeout(FETCH_MS_MAX),
    });
    if (isSignedOut(response)) {
      signIn();
      return;
    }
    if (response.ok) fresh = await response.text();
  } catch {
    // No answer in time counts like an answer that is a failure.
  }
  failures = fresh === null ? failures + 1 : 0;
  if (fresh !== null) {
    morph(fresh);
    freshAt = new Date();
  }
  const nowMs = performance.now();
  const busy = nowMs - refreshedAtMs < 2 * gapMs + 500;
  gapMs = Math.max(Math.min(busy ? gapMs * 1.5 : GAP_MS, GAP_MS_MAX), (nowMs - startedMs) / SHARE_MAX);
  refreshedAtMs = nowMs;
  if (failures === 0 && nowMs >= reopenAtMs) {
    sources = sources.map((source, place) => (source.readyState === EventSource.CLOSED ? follow(topics[place] as string) : source));
  }
  wait();
  settle();
}

/** The next cycle acts on a change that was accepted: read the page again until then, because not every change is an event. */
export function expectChange(): void {
  const nowMs = performance.now();
  expectedMs = ACCEPTED_MS.map((delayMs) => nowMs + delayMs);
}

/** How long until the next refresh without an event. */
function wait(): void {
  const polled = pollS();
  if (failures > 0) later(Math.min(1000 * 2 ** failures, RETRY_MS_MAX));
  else if (polled > 0) later(Math.max(polled * 1000, GAP_MS));
  else if (topics.length) later(IDLE_MS);
  expectedMs = expectedMs.filter((atMs) => atMs > performance.now());
  if (expectedMs[0] !== undefined) later(expectedMs[0] - performance.now());
}

/** Fetch the page again now, after the refresh that may be under way. */
export async function refreshNow(): Promise<void> {
  while (running) await running;
  clearTimeout(timer);
  dueAtMs = Infinity;
  running = refresh().finally(() => (running = null));
  await running;
}

/** Refresh in so many milliseconds, unless that happens sooner anyway. A page that is not seen is refreshed when it is. */
function later(delayMs: number): void {
  if (document.hidden) return;
  const atMs = performance.now() + delayMs * (1 + Math.random() / 5);
  if (atMs >= dueAtMs) return;
  dueAtMs = atMs;
  clearTimeout(timer);
  timer = window.setTimeout(() => void refreshNow(), atMs - performance.now());
}

function changed(): void {
  later(Math.max(GAP_MS, refreshedAtMs + gapMs - performance.now()));
}

function disconnect(): void {
  for (const source of sources) source.close();
  sources = [];
  clearTimeout(timer);
  dueAtMs = Infinity;
}

function areOpen(): boolean {
  return sources.length > 0 && sources.every((source) => source.readyState === EventSource.OPEN);
}

function follow(topic: string): EventSource {
  const source = new EventSource(url(`v1/events?topic=${encodeURIComponent(topic)}`));
  // What changed between the page's answer and now, or while there was no stream, is in the page that is fetched now.
  source.addEventListener("open", () => {
    if (areOpen()) refused = 0;
    settle();
    changed();
  });
  for (const name of EVENTS) source.addEventListener(name, changed);
  source.addEventListener("error", () => {
    if (!sources.includes(source)) return;
    settle();
    if (source.readyState !== EventSource.CLOSED) {
      later(3 * GAP_MS);
      return;
    }
    // It was refused: the page's own answer says whether the session has ended or the service is away.
    const delayMs = Math.min(GAP_MS * 2 ** refused, RETRY_MS_MAX);
    refused += 1;
    reopenAtMs = performance.now() + delayMs;
    later(delayMs);
  });
  return source;
}

function connect(): void {
  disconnect();
  sources = topics.map(follow);
}

function resume(): void {
  connect();
  void refreshNow();
}

export function installLive(): void {
  topics = (document.body.dataset["live"] ?? "").split(" ").filter(Boolean);
  if (!topics.length && !pollS()) return;
  show("connecting");
  if (!document.hidden) connect();
  wait();
  // A browser opens six connections to one origin: a page that is not seen must not hold one.
  document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : resume()));
  addEventListener("pagehide", disconnect);
  addEventListener("pageshow", (event) => {
    if (event.persisted) resume();
  });
  addEventListener("online", () => document.hidden || resume());
  addEventListener("offline", changed);
}

