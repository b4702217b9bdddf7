// A job's output: the end first, followed while the job runs, searched, as text whatever it contains.
import { ApiError, call } from "./api";
import { el } from "./dom";
import type { Widget } from "./widgets";

const PART_BYTES = 262_144;
const LINES_MAX = 5000;
const LINE_CHARS_MAX = 4000;
const FOLLOW_MS = 2000;

/** Escape sequences and marks of direction as visible characters, so that output cannot disguise itself. */
function visible(text: string): string {
  return text
    .replace(/[\u0000-\u0008\u000b-\u001f]/g, (found) => String.fromCharCode(0x2400 + found.charCodeAt(0)))
    .replace(/\u007f/g, "␡")
    .replace(/[\u0080-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g, (found) => `⟨U+${found.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

class Log implements Widget {
  private readonly lines = el("div", { class: "log", tabindex: 0, role: "log", "aria-label": "Output", "aria-live": "off" });
  private readonly state = el("span", { class: "muted small", role: "status" });
  private readonly search = el("input", { type: "search", placeholder: "Search the output", "aria-label": "Search the output" });
  private readonly follow = el("input", { type: "checkbox", checked: true });
  private readonly wrap = el("input", { type: "checkbox", checked: true });
  private readonly earlier = el("button", { type: "button" }, "Earlier");
  private decoder = new TextDecoder();
  private next = 0;
  private first = 0;
  private size = 0;
  /** The text of the line that has not ended, at most LINE_CHARS_MAX of it, and how much more there is. */
  private rest = "";
  private cut = 0;
  private open: HTMLElement | null = null;
  private place = -1;
  private timer = 0;
  private readonly stop = new AbortController();

  constructor(private readonly host: HTMLElement) {
    const raw = el("a", { class: "button", href: host.dataset["source"], download: "output.log" }, "Download");
    const label = (input: HTMLInputElement, text: string) => el("label", {}, input, ` ${text}`);
    const tools = el("div", { class: "toolbar" }, this.search, label(this.follow, "Follow"), label(this.wrap, "Wrap"), this.earlier, raw, this.state);
    host.replaceChildren(tools, this.lines);
    this.lines.classList.add("wrapped");
    this.wrap.addEventListener("change", () => this.lines.classList.toggle("wrapped", this.wrap.checked));
    this.follow.addEventListener("change", () => this.toEnd());
    this.search.addEventListener("input", () => this.find(0));
    this.search.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      this.find(event.shiftKey ? -1 : 1);
    });
    this.earlier.addEventListener("click", () => void this.loadEarlier());
    this.lines.addEventListener("wheel", (event) => {
      if (event.deltaY < 0) this.follow.checked = false;
    });
    document.addEventListener("visibilitychange", () => this.schedule(), { signal: this.stop.signal });
  }

  destroy(): void {
    this.stop.abort();
    clearTimeout(this.timer);
  }

  refresh(): void {
    void this.more();
  }

  private async part(offset: number, limit: number): Promise<Response> {
    const url = new URL(this.host.dataset["source"] ?? "", document.baseURI);
    url.searchParams.set("offset", String(offset));
    url.searchParams.set("limit", String(limit));
    return call("GET", url, undefined, { signal: this.stop.signal });
  }

  async start(): Promise<void> {
    const response = await this.part(-PART_BYTES, PART_BYTES);
    const bytes = await this.take(response);
    this.first = this.next - bytes;
    this.earlier.hidden = this.first <= 0;
    this.schedule();
  }

  private async take(response: Response): Promise<number> {
    const bytes = new Uint8Array(await response.arrayBuffer());
    this.next = Number(response.headers.get("Sooner-Next-Offset") ?? this.next + bytes.length);
    this.size = Number(response.headers.get("Sooner-Log-Bytes") ?? this.next);
    this.append(this.decoder.decode(bytes, { stream: true }));
    this.state.textContent = this.size ? `${this.size.toLocaleString()} bytes` : "No output yet";
    return bytes.length;
  }

  private under = false;

  /** Read on from where the last part ended. */
  private async more(): Promise<void> {
    if (this.under || document.hidden) return;
    this.under = true;
    try {
      for (let part = 0; part < 16; part += 1) if ((await this.take(await this.part(this.next, PART_BYTES))) < PART_BYTES) break;
    } catch (error) {
      if (error instanceof ApiError) this.state.textContent = `The output could not be read. ${error.message}`;
      else if (!this.stop.signal.aborted) throw error;
    } finally {
      this.under = false;
      this.schedule();
    }
  }

  private schedule(): void {
    clearTimeout(this.timer);
    if (this.stop.signal.aborted || document.hidden || this.host.dataset["stream"] !== "follow") return;
    this.timer = window.setTimeout(() => void this.more(), FOLLOW_MS);
  }

  private append(text: string): void {
    const pieces = text.split(/\r?\n/);
    pieces.forEach((piece, index) => {
      const room = Math.max(LINE_CHARS_MAX - this.rest.length, 0);
      this.cut += Math.max(piece.length - room, 0);
      this.rest += piece.slice(0, room);
      const ends = index < pieces.length - 1;
      if (ends || this.rest) this.showOpen();
      if (!ends) return;
      this.open = null;
      this.rest = "";
      this.cut = 0;
    });
    while (this.lines.childElementCount > LINES_MAX) this.lines.firstElementChild?.remove();
    if (this.search.value) this.find(0);
    this.toEnd();
  }

  private showOpen(): void {
    if (!this.open) this.lines.append((this.open = el("div", { class: "line" })));
    this.open.textContent = visible(this.rest) + (this.cut ? ` … ${this.cut.toLocaleString()} more characters` : "");
  }

  private toEnd(): void {
    if (this.follow.checked) this.lines.scrollTop = this.lines.scrollHeight;
  }

  private async loadEarlier(): Promise<void> {
    const from = Math.max(this.first - PART_BYTES, 0);
    try {
      const response = await this.part(from, this.first - from);
      const text = new TextDecoder().decode(await response.arrayBuffer());
      this.follow.checked = false;
      const before = this.lines.scrollHeight - this.lines.scrollTop;
      const made = text.split(/\r?\n/).map((line) => el("div", { class: "line" }, visible(line.slice(0, LINE_CHARS_MAX))));
      this.lines.prepend(...made);
      while (this.lines.childElementCount > LINES_MAX) this.lines.lastElementChild?.remove();
      this.lines.scrollTop = this.lines.scrollHeight - before;
      this.first = from;
      this.earlier.hidden = from <= 0;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.state.textContent = `The output could not be read. ${error.message}`;
    }
  }

  /** Mark the lines that contain the text, and go to the next (1), the one before (-1) or the first from here (0). */
  private find(step: number): void {
    const wanted = this.search.value.toLowerCase();
    const hits: Element[] = [];
    for (const line of this.lines.children) {
      const is = wanted !== "" && (line.textContent ?? "").toLowerCase().includes(wanted);
      line.classList.toggle("hit", is);
      line.classList.remove("current");
      if (is) hits.push(line);
    }
    if (!wanted) {
      this.state.textContent = `${this.size.toLocaleString()} bytes`;
      return;
    }
    this.place = hits.length ? (Math.max(this.place, 0) + step + hits.length) % hits.length : -1;
    this.state.textContent = hits.length ? `${this.place + 1} of ${hits.length} lines` : "No line contains it";
    const current = hits[this.place];
    if (!current) return;
    this.follow.checked = false;
    current.classList.add("current");
    current.scrollIntoView({ block: "nearest" });
  }
}

export async function mount(host: HTMLElement): Promise<Widget> {
  const log = new Log(host);
  try {
    await log.start();
  } catch (error) {
    log.destroy();
    throw error;
  }
  return log;
}
