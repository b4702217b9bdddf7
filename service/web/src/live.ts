// A page that stays right: events say that something changed, then the page itself is fetched again and morphed into <main>.
// Since the whole page is fetched, no event can be missed, and what the page shows is always one answer of the service.
import { Idiomorph } from "idiomorph";
import { isSignedOut, signIn } from "./api";
import { all, el, meta, url } from "./dom";
import { prepareTables } from "./tables";
import { localise, moment } from "./times";
import { isWidget, mountWidgets, refreshWidget } from "./widgets";

type State = "connecting" | "live" | "reconnecting" | "offline" | "stale";

const EVENTS = ["job", "server", "cycle"];
const GAP_MS = 1000;
/** Longest pause between two refreshes while events keep coming: many open pages must cost the service little. */
const GAP_MS_MAX = 5000;
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
  if (old instanceof HTMLFormElement) return !old.contains(document.activeElement) && ![...old.elements].some(isDirty);
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
  if (token && token !== meta("csrf-token")) document.querySelector('meta[name="csrf-token"]')?.setAttribute("content", token);
  mountWidgets(old);
  document.dispatchEvent(new Event("sooner:refreshed"));
}

function show(state: State): void {
  const text: Record<State, string> = {
    connecting: "Connecting",
    live: "Live",
    reconnecting: "Reconnecting",
    offline: `Not connected. This is as of ${moment(freshAt, new Date(), true)}`,
    stale: `Out of date. This is as of ${moment(freshAt, new Date(), true)}`,
  };
  document.body.dataset["state"] = state;
  for (const element of all(document, "[data-live-state]")) {
    if (element.getAttribute("data-live-state") === state) continue;
    element.setAttribute("data-live-state", state);
    element.replaceChildren(el("span", { class: "dot", "aria-hidden": "true" }), el("span", { class: "text" }, text[state]));
    element.title = text[state];
  }
}

function settle(): void {
  const open = sources.length > 0 && sources.every((source) => source.readyState === EventSource.OPEN);
  if (!topics.length) return;
  if (!navigator.onLine || (!open && failures >= 2)) show("offline");
  else if (open) show(failures > 0 ? "stale" : "live");
  else show("reconnecting");
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
  if (failures === 0 && sources.some((source) => source.readyState === EventSource.CLOSED)) connect();
  wait();
  settle();
}

/** The next cycle acts on a change that was accepted: read the page again until then, because not every change is an event. */
export function expectChange(): void {
  const nowMs = performance.now();
  expectedMs = ACCEPTED_MS.map((delayMs) => nowMs + delayMs);
}

/** How long until the next refresh without an event. [data-poll] names the seconds for what has no events. */
function wait(): void {
  const polled = Number(document.querySelector<HTMLElement>("[data-poll]")?.dataset["poll"] ?? 0);
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

/** Refresh in so many milliseconds, unless that happens sooner anyway. */
function later(delayMs: number): void {
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

function connect(): void {
  disconnect();
  sources = topics.map((topic) => {
    const source = new EventSource(url(`v1/events?topic=${encodeURIComponent(topic)}`));
    // What changed between the page's answer and now, or while there was no stream, is in the page that is fetched now.
    source.addEventListener("open", () => {
      settle();
      changed();
    });
    for (const name of EVENTS) source.addEventListener(name, changed);
    source.addEventListener("error", () => {
      if (!sources.includes(source)) return;
      settle();
      // A closed stream was refused: the page's own answer says whether the session has ended or the service is away.
      later(source.readyState === EventSource.CLOSED ? GAP_MS : 3 * GAP_MS);
    });
    return source;
  });
}

function resume(): void {
  connect();
  void refreshNow();
}

export function installLive(): void {
  const wanted = document.body.dataset["live"] ?? "none";
  topics = wanted === "none" ? [] : wanted === "all" ? ["jobs", "servers"] : wanted.split(" ").filter(Boolean);
  if (!topics.length && !document.querySelector("[data-poll]")) return;
  if (topics.length) show("connecting");
  if (!document.hidden) connect();
  wait();
  // A browser opens six connections to one origin: a page that is not seen must not hold one.
  document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : resume()));
  addEventListener("pagehide", disconnect);
  addEventListener("pageshow", (event) => {
    if (event.persisted) resume();
  });
  addEventListener("online", resume);
  addEventListener("offline", settle);
}

