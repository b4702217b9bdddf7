// A job's output: the end first, followed while the job runs, searched, as text whatever it contains.
import { ApiError, call } from "./api";
import { el } from "./dom";
import type { Widget } from "./widgets";

const PART_BYTES = 262_144;
const LINES_MAX = 5000;
/** Lines that "Earlier" adds at most. */
const EARLIER_LINES_MAX = 2000;
const LINE_CHARS_MAX = 4000;
/** A character has four bytes at most. */
const LINE_BYTES_MAX = 4 * LINE_CHARS_MAX;
/** Output that came while the page was not seen is left out beyond this. */
const BEHIND_BYTES_MAX = 16 * PART_BYTES;
const FOLLOW_MS = 2000;
const NEWLINE = 10;
const NOTHING: Uint8Array = new Uint8Array();

const decoder = new TextDecoder("utf-8", { ignoreBOM: true });

/** Bytes of the log, and where the first of them stands in it. */
interface Part {
  begin: number;
  bytes: Uint8Array;
}

/** Escape sequences and marks of direction as visible characters, so that output cannot disguise itself. */
function visible(text: string): string {
  return text
    .replace(/[\u0000-\u0008\u000b-\u001f]/g, (found) => String.fromCharCode(0x2400 + found.charCodeAt(0)))
    .replace(/\u007f/g, "␡")
    .replace(/[\u0080-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g, (found) => `⟨U+${found.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

/** What is shown of a line of so many bytes without its end, of which these are the first. */
function shown(bytes: Uint8Array, size: number): string {
  const whole = decoder.decode(bytes).replace(/\r?\n$/, "");
  const text = whole.slice(0, LINE_CHARS_MAX);
  const left = text.length < whole.length || size > bytes.length ? size - new TextEncoder().encode(text).length : 0;
  return visible(text) + (left > 0 ? ` … ${left.toLocaleString()} more bytes` : "");
}

function joined(left: Uint8Array, right: Uint8Array): Uint8Array {
  const both = new Uint8Array(left.length + right.length);
  both.set(left);
  both.set(right, left.length);
  return both;
}

/** The lines, each with its end. */
function linesOf(bytes: Uint8Array): Uint8Array[] {
  const lines: Uint8Array[] = [];
  for (let start = 0, end = 0; start < bytes.length; start = end) {
    end = bytes.indexOf(NEWLINE, start) + 1 || bytes.length;
    lines.push(bytes.subarray(start, end));
  }
  return lines;
}

/** Without the rest of the line that begins before it, unless that is all there is. */
function fromLineStart({ begin, bytes }: Part): Part {
  const start = begin > 0 ? bytes.indexOf(NEWLINE) + 1 : 0;
  return start < bytes.length ? { begin: begin + start, bytes: bytes.subarray(start) } : { begin, bytes };
}

class Log implements Widget {
  private readonly lines = el("div", { class: "log", tabindex: 0, role: "log", "aria-label": "Output", "aria-live": "off" });
  private readonly state = el("span", { class: "muted small", role: "status" });
  private readonly search = el("input", { type: "search", placeholder: "Search the output", "aria-label": "Search the output" });
  private readonly follow = el("input", { type: "checkbox", checked: true });
  private readonly wrap = el("input", { type: "checkbox", checked: true });
  private readonly earlier = el("button", { type: "button" }, "Earlier");
  /** The lines that are shown are the bytes from ``first`` to ``next``, without a gap. */
  private first = 0;
  private next = 0;
  private size = 0;
  /** No byte before it was kept, as far as is known. */
  private earliest = 0;
  private readonly bytesOf = new WeakMap<Element, number>();
  /** The last line, if it has not ended, and its first bytes. */
  private open: HTMLElement | null = null;
  private rest = NOTHING;
  private current: Element | null = null;
  private attempt: string;
  private timer = 0;
  private polls = false;
  private last: Promise<void> = Promise.resolve();
  private readonly stop = new AbortController();

  constructor(private readonly host: HTMLElement) {
    this.attempt = host.dataset["attempt"] ?? "";
    const raw = el("a", { class: "button", href: host.dataset["source"], download: "output.log" }, "Download");
    const label = (input: HTMLInputElement, text: string) => el("label", {}, input, ` ${text}`);
    const tools = el("div", { class: "toolbar" }, this.search, label(this.follow, "Follow"), label(this.wrap, "Wrap"), this.earlier, raw, this.state);
    host.replaceChildren(tools, this.lines);
    this.lines.classList.add("wrapped");
    this.listen();
  }

  private listen(): void {
    const pause = () => (this.follow.checked = false);
    this.wrap.addEventListener("change", () => this.lines.classList.toggle("wrapped", this.wrap.checked));
    this.follow.addEventListener("change", () => {
      // The end may have been left out to show what is earlier.
      if (this.follow.checked) void this.run(() => (this.next < this.size ? this.restart() : this.more()));
    });
    this.search.addEventListener("input", () => this.find(0));
    this.search.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      this.find(event.shiftKey ? -1 : 1);
    });
    this.earlier.addEventListener("click", () => void this.run(() => this.showEarlier()));
    this.lines.addEventListener("wheel", (event) => event.deltaY < 0 && pause(), { passive: true });
    this.lines.addEventListener("touchmove", pause, { passive: true });
    this.lines.addEventListener("keydown", (event) => /^(ArrowUp|PageUp|Home)$/.test(event.key) && pause());
    document.addEventListener("visibilitychange", () => this.schedule(), { signal: this.stop.signal });
  }

  destroy(): void {
    this.stop.abort();
    clearTimeout(this.timer);
  }

  refresh(): void {
    const attempt = this.host.dataset["attempt"] ?? "";
    if (attempt !== this.attempt) void this.run(() => this.restart());
    else this.poll();
    this.attempt = attempt;
  }

  /** Do one thing after the other, and say what fails. */
  private run(work: () => Promise<void>): Promise<void> {
    const done = this.last.then(work).catch((error: unknown) => {
      if (error instanceof ApiError) this.state.textContent = `The output could not be read. ${error.message}`;
      else if (!this.stop.signal.aborted) throw error;
    });
    this.last = done.catch(() => undefined);
    return done;
  }

  private poll(): void {
    if (this.polls || document.hidden) return;
    this.polls = true;
    void this.run(() => this.more()).finally(() => {
      this.polls = false;
      this.schedule();
    });
  }

  private schedule(): void {
    clearTimeout(this.timer);
    if (this.stop.signal.aborted || document.hidden || this.host.dataset["stream"] !== "follow") return;
    this.timer = window.setTimeout(() => this.poll(), FOLLOW_MS);
  }

  /** One part from an offset on. It may end early: at the end of a file of the log. */
  private async part(offset: number, limit: number): Promise<Part> {
    const url = new URL(this.host.dataset["source"] ?? "", document.baseURI);
    url.searchParams.set("offset", String(offset));
    url.searchParams.set("limit", String(limit));
    const response = await call("GET", url, undefined, this.stop.signal);
    const bytes = new Uint8Array(await response.arrayBuffer());
    this.size = Number(response.headers.get("Sooner-Log-Bytes"));
    return { begin: Number(response.headers.get("Sooner-Next-Offset")) - bytes.length, bytes };
  }

  /** Show the end. */
  async restart(): Promise<void> {
    this.clear(fromLineStart(await this.part(-PART_BYTES, PART_BYTES)));
    await this.more(this.next < this.size);
    this.schedule();
  }

  private clear({ begin, bytes }: Part): void {
    this.lines.replaceChildren();
    this.open = null;
    this.first = this.next = begin;
    this.earliest = 0;
    this.append(bytes);
  }

  /** Read on from where the last part ended, up to the end. Lines that are being read stay while they fill the view. */
  private async more(ask = true): Promise<void> {
    const behind = () => this.size - this.next > BEHIND_BYTES_MAX;
    const keeps = () => !this.follow.checked && (this.lines.childElementCount >= LINES_MAX || behind());
    while (ask && !keeps()) {
      const part = await this.part(this.next, PART_BYTES);
      // A shorter log is that of another attempt, which has begun.
      if (this.size < this.next || (this.follow.checked && behind())) return this.restart();
      if (part.begin > this.next) this.clear(part);
      else this.append(part.bytes);
      ask = part.bytes.length > 0 && this.next < this.size;
    }
    this.mark();
    if (this.follow.checked) this.lines.scrollTop = this.lines.scrollHeight;
  }

  private append(bytes: Uint8Array): void {
    this.next += bytes.length;
    for (const line of linesOf(bytes)) this.extend(line);
    while (this.lines.childElementCount > LINES_MAX) {
      const dropped = this.lines.firstElementChild as Element;
      this.first += this.bytesOf.get(dropped) ?? 0;
      dropped.remove();
    }
  }

  private extend(piece: Uint8Array): void {
    if (!this.open) {
      this.lines.append((this.open = el("div", { class: "line" })));
      this.rest = NOTHING;
    }
    const size = (this.bytesOf.get(this.open) ?? 0) + piece.length;
    const ends = piece.at(-1) === NEWLINE;
    this.bytesOf.set(this.open, size);
    this.rest = joined(this.rest, piece.subarray(0, LINE_BYTES_MAX - this.rest.length));
    this.open.textContent = shown(this.rest, size - Number(ends));
    if (ends) this.open = null;
  }

  /** Add the lines before the first one. As many lines at the end make room for them. */
  private async showEarlier(): Promise<void> {
    let [begin, bytes] = [Math.max(this.first - PART_BYTES, 0), NOTHING];
    for (let end = begin; end < this.first; end = begin + bytes.length) {
      const part = await this.part(end, this.first - end);
      // The start of a long log is cut off.
      if (part.begin > end) [begin, bytes] = [part.begin, NOTHING];
      if (!part.bytes.length || begin >= this.first) break;
      bytes = joined(bytes, part.bytes);
    }
    if (begin + bytes.length !== this.first) bytes = NOTHING;
    if (!bytes.length) this.earliest = this.first;
    const lines = linesOf(fromLineStart({ begin, bytes }).bytes).slice(-EARLIER_LINES_MAX);
    const before = this.lines.scrollHeight - this.lines.scrollTop;
    this.follow.checked = false;
    this.lines.prepend(
      ...lines.map((line) => {
        const made = el("div", { class: "line" }, shown(line.subarray(0, LINE_BYTES_MAX), line.length - Number(line.at(-1) === NEWLINE)));
        this.bytesOf.set(made, line.length);
        this.first -= line.length;
        return made;
      }),
    );
    this.lines.scrollTop = this.lines.scrollHeight - before;
    while (this.lines.childElementCount > LINES_MAX) {
      const dropped = this.lines.lastElementChild as Element;
      this.next -= this.bytesOf.get(dropped) ?? 0;
      dropped.remove();
      this.open = null;
    }
    this.mark();
  }

  /** Mark the lines that contain the text, and say how many or what is shown. */
  private mark(): Element[] {
    const wanted = this.search.value.toLowerCase();
    const hits: Element[] = [];
    for (const line of this.lines.children) {
      const is = wanted !== "" && (line.textContent ?? "").toLowerCase().includes(wanted);
      line.classList.toggle("hit", is);
      line.classList.toggle("current", is && line === this.current);
      if (is) hits.push(line);
    }
    this.earlier.hidden = this.first <= this.earliest;
    const { first, next, size } = this;
    const place = this.current ? hits.indexOf(this.current) : -1;
    this.state.textContent =
      wanted ? (hits.length ? `${place < 0 ? "" : `${place + 1} of `}${hits.length} lines` : "No line contains it")
      : size === 0 ? "No output yet"
      : next - first < size ? `Bytes ${first.toLocaleString()} to ${next.toLocaleString()} of ${size.toLocaleString()}`
      : `${size.toLocaleString()} bytes`;
    return hits;
  }

  /** Go to the next line that contains the text (1), the one before (-1), or stay at one (0). */
  private find(step: number): void {
    const hits = this.mark();
    const place = this.current ? hits.indexOf(this.current) : -1;
    const next = place < 0 ? (step < 0 ? hits.length - 1 : 0) : (place + step + hits.length) % hits.length;
    this.current = hits[next] ?? null;
    if (!this.current) return;
    this.follow.checked = false;
    this.mark();
    this.current.scrollIntoView({ block: "nearest" });
  }
}

export async function mount(host: HTMLElement): Promise<Widget> {
  const log = new Log(host);
  try {
    await log.restart();
  } catch (error) {
    log.destroy();
    throw error;
  }
  return log;
}
