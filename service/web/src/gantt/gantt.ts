// The timeline of GPUs: a row a GPU, an attempt a bar. Drawn on a canvas; keys, pointer and a table reach the same things.
import { ApiError } from "../api";
import { announce, el } from "../dom";
import { onTheme } from "../theme";
import type { Widget } from "../widgets";
import { type Ink, Looks, inkOf } from "./colours";
import { type Attempt, type Bar, Model, type Rack, RACK_PX, type Server } from "./model";
import { AXIS_PX, type Scene, type View, paint, rowsOf, timeOf, visible, xOf } from "./paint";
import { Source } from "./source";
import { about, counted, tableOf } from "./words";

const SPAN_S_MIN = 5;
const SPAN_S_MAX = 120 * 86_400;
const CHIPS_MAX = 8;
const TABLE_ROWS_MAX = 200;
const REFETCH_MS = 350;
const TICK_MS = 5000;
/** A view of everything is loaded anew when its period has grown by this factor: a page may stay open for weeks. */
const GROWTH_MAX = 1.25;

interface Point {
  x: number;
  y: number;
}

type Hit = { bar: Bar } | { server: Server } | { rack: Rack } | null;

class Gantt implements Widget {
  private readonly model = new Model();
  private readonly source: Source;
  private readonly looks = new Looks();
  private readonly jobLink: string;
  private readonly canvas = el("canvas", { tabindex: 0, role: "application", "aria-roledescription": "timeline" });
  private readonly context: CanvasRenderingContext2D;
  private readonly tip = el("div", { class: "gantt-tip", hidden: true });
  private readonly said = el("p", { class: "visually-hidden", "aria-live": "polite" });
  private readonly summary = el("p", { class: "muted small" });
  private readonly chips = el("div", { class: "gantt-chips" });
  private readonly search = el("input", { type: "search", placeholder: "Job, name or user", "aria-label": "Highlight jobs in the timeline" });
  private readonly by = el("select", { "aria-label": "Colour by" }, el("option", { value: "family" }, "Colour by job family"), el("option", { value: "user" }, "Colour by user"));
  private readonly details = el("details", {}, el("summary", {}, "As a table"));
  private readonly view: View = { from: 0, to: 1, scroll: 0, width: 600, height: 300, gutter: 140 };
  private ink: Ink;
  private gpuPx = 14;
  /** Servers when the rows were laid out. */
  private laidOut = 0;
  private dense: boolean | null = null;
  private follows = true;
  /** The reader has not moved or zoomed since everything was shown. */
  private fitted = true;
  private only: string | null = null;
  private selected: Bar | null = null;
  private hovered: Attempt | null = null;
  private frame = 0;
  private refetch = 0;
  /** Where each pointer that is down was last. */
  private readonly pointers = new Map<number, Point>();
  private moved = 0;
  private readonly stops: (() => void)[] = [];

  constructor(private readonly host: HTMLElement) {
    this.source = new Source(new URL(host.dataset["timeline"] ?? "", document.baseURI), this.model);
    this.jobLink = host.dataset["jobLink"] ?? "";
    const context = this.canvas.getContext("2d", { alpha: false });
    if (!context) throw new Error("The browser has no canvas.");
    this.context = context;
    this.build();
    this.ink = inkOf(host);
    this.listen();
  }

  private button(text: string, label: string, act: () => void): HTMLButtonElement {
    const made = el("button", { type: "button", "aria-label": /\w/.test(text) ? null : label, title: label }, text);
    made.addEventListener("click", act);
    return made;
  }

  private build(): void {
    const tools = el(
      "div",
      { class: "toolbar gantt-tools" },
      this.search,
      this.by,
      this.button("−", "Zoom out", () => this.zoom(1.5)),
      this.button("+", "Zoom in", () => this.zoom(1 / 1.5)),
      this.button("All", "Show everything", () => this.fit()),
      this.button("Rows", "Change the height of the rows", () => this.setDense(this.gpuPx > 6)),
    );
    this.canvas.setAttribute("aria-label", "Timeline of GPUs. Arrow keys select attempts, plus and minus zoom, Enter opens the job.");
    this.summary.textContent = "Loading the attempts.";
    this.host.replaceChildren(tools, this.chips, el("div", { class: "gantt-box" }, this.canvas, this.tip), this.said, this.summary, this.details);
  }

  private listen(): void {
    const on = <K extends keyof HTMLElementEventMap>(name: K, act: (event: HTMLElementEventMap[K]) => void) =>
      this.canvas.addEventListener(name, act, { passive: false });
    on("wheel", (event) => this.onWheel(event));
    on("pointerdown", (event) => this.onDown(event));
    on("pointermove", (event) => this.onMove(event));
    on("pointerup", (event) => this.onUp(event));
    on("pointercancel", (event) => this.pointers.delete(event.pointerId));
    on("pointerleave", () => this.hover(null, 0, 0));
    on("keydown", (event) => this.onKey(event));
    on("blur", () => this.hover(null, 0, 0));
    this.search.addEventListener("input", () => this.draw());
    this.by.addEventListener("change", () => {
      this.only = null;
      this.colour();
      this.draw();
    });
    this.details.addEventListener("toggle", () => this.fillTable());
    const sized = new ResizeObserver(() => this.resize());
    sized.observe(this.canvas.parentElement as HTMLElement);
    const ticking = setInterval(() => document.hidden || this.advance(), TICK_MS);
    this.stops.push(
      () => sized.disconnect(),
      () => clearInterval(ticking),
      onTheme(() => {
        this.ink = inkOf(this.host);
        this.draw();
      }),
    );
  }

  /** Load the whole period, and draw it. */
  async start(): Promise<void> {
    await this.source.load(null, 0);
    this.colour();
    this.resize();
    this.fit();
    this.paintNow();
    performance.mark("gantt-ready");
    this.host.dataset["ready"] = "";
  }

  refresh(): void {
    void this.update();
  }

  destroy(): void {
    for (const stop of this.stops) stop();
    cancelAnimationFrame(this.frame);
    clearTimeout(this.refetch);
  }

  private async update(): Promise<void> {
    let changed: Attempt[];
    try {
      changed = await (this.fitted && this.source.growth > GROWTH_MAX ? this.source.load(null, 0) : this.source.update());
    } catch (error) {
      // The page shows whether the service answers; the chart keeps what it has.
      if (!(error instanceof ApiError)) throw error;
      return;
    }
    performance.mark("gantt-update");
    if (this.looks.assign(this.barsOf(changed))) this.colour();
    this.reselect();
    if (this.model.servers.length === this.laidOut) this.model.layOut(this.gpuPx);
    else this.resize();
    this.summarise();
    if (this.fitted) this.fit();
    else this.advance();
    if (this.details.open) this.fillTable();
    performance.measure("gantt-update", "gantt-update");
    this.host.dataset["updates"] = String(Number(this.host.dataset["updates"] ?? 0) + 1);
  }

  /** Keep the selection on the bar that an answer has put in its place. */
  private reselect(): void {
    if (!this.selected) return;
    const { attempt, server, first } = this.selected;
    const bars = this.model.attempts.get(attempt.id)?.bars ?? [];
    this.selected = bars.find((bar) => bar.server === server && bar.first === first) ?? bars[0] ?? null;
  }

  private get now(): number {
    return Date.now() / 1000 + this.source.clockS;
  }

  private advance(): void {
    if (this.follows && this.view.to > this.now) {
      const behind = this.now - this.anchor;
      this.view.from += behind;
      this.view.to += behind;
      this.anchor = this.now;
    }
    this.draw();
  }

  /** The instant for which the view that follows the time was chosen. */
  private anchor = 0;

  private readonly keyOf = (attempt: Attempt): string => (this.by.value === "user" ? `u:${attempt.user}` : `f:${attempt.family}`);

  /** How many bars each family or user has. */
  private barsOf(attempts: Iterable<Attempt>): Map<string, number> {
    const counts = new Map<string, number>();
    for (const attempt of attempts) {
      if (attempt.job === null) continue;
      const key = this.keyOf(attempt);
      counts.set(key, (counts.get(key) ?? 0) + attempt.bars.length);
    }
    return counts;
  }

  private colour(): void {
    const counts = this.barsOf(this.model.attempts.values());
    this.looks.assign(counts);
    const most = [...counts].sort((left, right) => right[1] - left[1]).slice(0, CHIPS_MAX);
    this.showChips(most.map(([key]) => key), counts.size);
    this.summarise();
  }

  private summarise(): void {
    const parts = [counted(this.model.servers.length, "server"), `${counted(this.model.attempts.size, "attempt")}, ${this.model.open.toLocaleString()} of them open`];
    if (this.model.leftOut > 0) parts.push(`${this.model.leftOut} short ones merged; zoom in to see them`);
    const text = `${parts.join(". ")}.`;
    if (this.summary.textContent !== text) this.summary.textContent = text;
  }

  private showChips(keys: string[], all: number): void {
    const shown = keys.join("\n");
    if (this.chips.dataset["keys"] === shown) return;
    this.chips.dataset["keys"] = shown;
    const made = keys.map((key) => {
      const swatch = el("canvas", { width: 14, height: 14, "aria-hidden": true });
      const context = swatch.getContext("2d");
      const pattern = context && this.looks.pattern(context, key);
      for (const fill of [this.looks.colour(key), pattern]) {
        if (!context || !fill) continue;
        context.fillStyle = fill;
        context.fillRect(0, 0, 14, 14);
      }
      const chip = el("button", { type: "button", class: "chip", "aria-pressed": String(this.only === key) }, swatch, key.slice(2) || "no name");
      chip.addEventListener("click", () => {
        this.only = this.only === key ? null : key;
        for (const each of this.chips.querySelectorAll("button")) each.setAttribute("aria-pressed", String(each === chip && this.only === key));
        this.draw();
      });
      return chip;
    });
    this.chips.replaceChildren(...made, ...(all > keys.length ? [el("span", { class: "muted small" }, `and ${all - keys.length} more`)] : []));
  }

  private lit(): ((attempt: Attempt) => boolean) | null {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const { only } = this;
    if (!words.length && only === null) return null;
    return (attempt) => {
      if (only !== null && (attempt.job === null || this.keyOf(attempt) !== only)) return false;
      const text = `${attempt.job ?? ""} ${attempt.name} ${attempt.user}`.toLowerCase();
      return words.every((word) => text.includes(word));
    };
  }

  private resize(): void {
    const box = this.canvas.parentElement as HTMLElement;
    const width = Math.max(box.clientWidth, 200);
    this.view.gutter = width < 560 ? 84 : 150;
    const gpus = this.model.servers.reduce((sum, server) => sum + server.gpus, 0);
    this.gpuPx = (this.dense ?? gpus > 256) ? 4 : gpus > 64 ? 12 : 16;
    this.model.layOut(this.gpuPx);
    this.laidOut = this.model.servers.length;
    const height = Math.round(Math.min(Math.max(this.model.height + AXIS_PX + 6, 140), Math.max(innerHeight * 0.68, 260)));
    const ratio = devicePixelRatio || 1;
    this.view.width = width;
    this.view.height = height;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    // Where all rows fit, a finger that moves up or down moves the page.
    this.canvas.style.touchAction = this.model.height + AXIS_PX + 6 > height ? "none" : "pan-y";
    this.scroll(0);
    // A canvas is empty after its size was set, so waiting for the next frame would flicker.
    if (this.model.since > 0) this.paintNow();
  }

  private setDense(dense: boolean): void {
    this.dense = dense;
    this.resize();
  }

  private scroll(by: number): boolean {
    const most = Math.max(this.model.height + AXIS_PX + 6 - this.view.height, 0);
    const before = this.view.scroll;
    this.view.scroll = Math.min(Math.max(before + by, 0), most);
    return this.view.scroll !== before;
  }

  private draw(): void {
    this.frame ||= requestAnimationFrame(() => this.paintNow());
  }

  private paintNow(): void {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    const ratio = devicePixelRatio || 1;
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    paint(this.context, this.scene());
  }

  private scene(): Scene {
    const { model, view, looks, ink, now, keyOf } = this;
    return { model, view, looks, ink, now, keyOf, lit: this.lit(), selected: this.selected?.attempt ?? null, hovered: this.hovered };
  }

  /** Show from the first attempt to the end of the predictions, and follow the time. */
  private fit(): void {
    const { now } = this;
    let [first, last] = [now, now];
    for (const attempt of this.model.attempts.values()) {
      first = Math.min(first, attempt.start);
      last = Math.max(last, attempt.p90 ?? attempt.p50 ?? 0);
    }
    first = Math.max(first, this.model.since);
    const past = Math.max(now - first, 60);
    this.view.from = now - past * 1.02;
    this.view.to = now + Math.min(Math.max((last - now) * 1.05, past * 0.08), past * 0.8);
    this.anchor = now;
    this.follows = this.fitted = true;
    this.draw();
  }

  private show(from: number, to: number): void {
    this.fitted = false;
    const span = Math.min(Math.max(to - from, SPAN_S_MIN), SPAN_S_MAX);
    const middle = (from + to) / 2;
    this.view.from = middle - span / 2;
    this.view.to = middle + span / 2;
    this.follows = this.view.from < this.now && this.view.to > this.now;
    this.anchor = this.now;
    this.draw();
    const pixel = span / (this.view.width - this.view.gutter);
    clearTimeout(this.refetch);
    if (this.source.lacks(this.view.from, pixel)) this.refetch = window.setTimeout(() => void this.reload(span, pixel), REFETCH_MS);
  }

  private async reload(span: number, pixel: number): Promise<void> {
    try {
      await this.source.load(Math.min(this.view.from - span / 2, this.now - 60), pixel * 2);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      announce(`The timeline could not be loaded. ${error.message}`, "error");
      return;
    }
    this.reselect();
    this.colour();
    this.resize();
  }

  private zoom(factor: number, x = (this.view.width + this.view.gutter) / 2): void {
    const at = timeOf(this.view, Math.max(x, this.view.gutter));
    this.show(at - (at - this.view.from) * factor, at + (this.view.to - at) * factor);
  }

  private pan(pixels: number): void {
    const by = (pixels / (this.view.width - this.view.gutter)) * (this.view.to - this.view.from);
    this.show(this.view.from + by, this.view.to + by);
  }

  private onWheel(event: WheelEvent): void {
    const scale = event.deltaMode === 1 ? 16 : 1;
    if (event.ctrlKey || event.metaKey || event.altKey) this.zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY * scale)) / 140), event.offsetX);
    else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan((event.deltaX || event.deltaY) * scale);
    else if (this.scroll(event.deltaY * scale)) this.draw();
    // At the end of the rows the wheel moves the page.
    else return;
    event.preventDefault();
  }

  private onDown(event: PointerEvent): void {
    if (event.button !== 0) return;
    this.pointers.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
    // Fingers that have pinched do not click when they leave.
    this.moved = this.pointers.size > 1 ? Infinity : 0;
    this.canvas.setPointerCapture(event.pointerId);
  }

  private onMove(event: PointerEvent): void {
    const point = { x: event.offsetX, y: event.offsetY };
    const before = this.pointers.get(event.pointerId);
    if (!before) {
      this.hover(this.hit(point.x, point.y), point.x, point.y);
      return;
    }
    const other = [...this.pointers].find(([id]) => id !== event.pointerId)?.[1];
    if (other) {
      const distance = (one: Point) => Math.max(Math.abs(one.x - other.x), 10);
      this.zoom(distance(before) / distance(point), (point.x + other.x) / 2);
    } else {
      const [dx, dy] = [point.x - before.x, point.y - before.y];
      this.moved += Math.abs(dx) + Math.abs(dy);
      if (this.moved > 4) {
        this.hover(null, 0, 0);
        this.scroll(-dy);
        this.pan(-dx);
      }
    }
    this.pointers.set(event.pointerId, point);
  }

  private onUp(event: PointerEvent): void {
    const clicks = this.pointers.size === 1 && this.moved <= 4;
    if (!this.pointers.delete(event.pointerId) || !clicks) return;
    const hit = this.hit(event.offsetX, event.offsetY);
    if (hit && "bar" in hit) this.open(hit.bar.attempt, event.ctrlKey || event.metaKey);
    else if (hit && "rack" in hit) this.model.fold(hit.rack);
    else if (hit && "server" in hit) hit.server.folded = !hit.server.folded;
    if (hit && !("bar" in hit)) this.resize();
  }

  private open(attempt: Attempt, apart = false): void {
    if (attempt.state === "merged") {
      const half = Math.max((attempt.end ?? this.now) - attempt.start, SPAN_S_MIN);
      this.show(attempt.start - half, (attempt.end ?? this.now) + half);
    } else if (attempt.job !== null) {
      const target = new URL(this.jobLink + attempt.job, document.baseURI);
      if (apart) window.open(target, "_blank", "noopener");
      else location.assign(target);
    }
  }

  private hit(x: number, y: number): Hit {
    const row = y - AXIS_PX + this.view.scroll;
    if (y < AXIS_PX) return null;
    if (this.model.hasRacks) {
      const rack = this.model.racks.find((each) => row >= each.y && row < each.y + RACK_PX);
      if (rack) return { rack };
    }
    const server = this.model.servers.find((each) => row >= each.y && row < each.y + each.height);
    if (!server) return null;
    if (x < this.view.gutter) return { server };
    const gpu = ((row - server.y) / server.height) * server.gpus;
    // The one that is drawn last lies on top. Thin bars get a margin of two pixels.
    const bar = server.bars.findLast((each) => {
      if (gpu < each.first || gpu >= each.first + each.gpus) return false;
      const end = Math.max(each.attempt.end ?? Math.max(this.now, each.attempt.p50 ?? 0), each.attempt.start);
      return x >= xOf(this.view, each.attempt.start) - 2 && x <= xOf(this.view, end) + 2;
    });
    return bar ? { bar } : null;
  }

  private hover(hit: Hit, x: number, y: number): void {
    const attempt = hit && "bar" in hit ? hit.bar.attempt : null;
    const text = attempt ? about(attempt, this.now) : this.aboutRow(hit);
    this.canvas.style.cursor = hit ? "pointer" : "grab";
    this.tip.hidden = !text;
    if (text) {
      this.tip.replaceChildren(el("strong", {}, text[0]), ...text[1].map((line) => el("div", {}, line)));
      const { offsetWidth, offsetHeight } = this.tip;
      this.tip.style.left = `${Math.max(Math.min(x + 14, this.view.width - offsetWidth - 4), 0)}px`;
      this.tip.style.top = `${y + 18 + offsetHeight > this.view.height ? Math.max(y - offsetHeight - 10, 0) : y + 18}px`;
    }
    if (attempt === this.hovered) return;
    this.hovered = attempt;
    this.draw();
  }

  private aboutRow(hit: Hit): [string, string[]] | null {
    if (!hit || !("server" in hit)) return null;
    const { server } = hit;
    const lines = [`${server.gpus} × ${server.type || "GPU"}, ${server.state}`];
    if (server.rack) lines.push(`rack ${server.rack}`);
    for (const each of server.reserved) lines.push(`reservation ${each.id}`);
    return [server.name, lines];
  }

  private onKey(event: KeyboardEvent): void {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const step = 80;
    const acts: Record<string, () => void> = {
      "+": () => this.zoom(1 / 1.5),
      "=": () => this.zoom(1 / 1.5),
      "-": () => this.zoom(1.5),
      "0": () => this.fit(),
      Enter: () => this.selected && this.open(this.selected.attempt),
      Escape: () => this.select(null),
      PageDown: () => this.scroll(this.view.height / 2),
      PageUp: () => this.scroll(-this.view.height / 2),
      ArrowLeft: () => (event.shiftKey ? this.pan(-step) : this.step(-1, 0)),
      ArrowRight: () => (event.shiftKey ? this.pan(step) : this.step(1, 0)),
      ArrowUp: () => (event.shiftKey ? this.scroll(-step) : this.step(0, -1)),
      ArrowDown: () => (event.shiftKey ? this.scroll(step) : this.step(0, 1)),
    };
    const act = acts[event.key];
    if (!act) return;
    event.preventDefault();
    act();
    this.draw();
  }

  /** Select the neighbour in time on the same GPU, or the bar at the same time on the next rows that have one. */
  private step(time: number, row: number): void {
    const from = this.selected;
    if (!from) {
      const bars = visible(this.scene()).flatMap((server) => server.bars);
      const inView = bars.filter((bar) => bar.attempt.start < this.view.to && (bar.attempt.end ?? this.now) > this.view.from);
      this.select(inView[0] ?? null);
      return;
    }
    if (time) {
      const same = from.server.bars.filter((bar) => bar.first <= from.first && from.first < bar.first + bar.gpus);
      same.sort((left, right) => left.attempt.start - right.attempt.start);
      this.select(same[same.indexOf(from) + time] ?? from);
      return;
    }
    const at = Math.max(from.attempt.start, this.view.from);
    const places = this.model.servers.filter((server) => server.height > 0);
    for (let place = places.indexOf(from.server); place >= 0 && place < places.length; place += row) {
      const bars = (places[place]?.bars ?? []).filter((bar) => bar.server !== from.server || (bar.first - from.first) * row > 0);
      bars.sort((left, right) => (left.first - right.first) * row || Math.abs(left.attempt.start - at) - Math.abs(right.attempt.start - at));
      if (bars[0]) {
        this.select(bars[0]);
        return;
      }
    }
  }

  private select(bar: Bar | null): void {
    this.selected = bar;
    this.draw();
    this.tip.hidden = true;
    if (!bar) return;
    const [top, height] = rowsOf(this.view, bar);
    if (top < AXIS_PX) this.scroll(top - AXIS_PX - RACK_PX);
    else if (top + height > this.view.height) this.scroll(top + height - this.view.height + 8);
    const { start } = bar.attempt;
    const end = bar.attempt.end ?? this.now;
    if (end < this.view.from || start > this.view.to) this.pan(xOf(this.view, (start + end) / 2) - this.view.width / 2);
    const [title, lines] = about(bar.attempt, this.now);
    this.said.textContent = `${title}. ${lines.join(". ")}`;
    const [shown] = rowsOf(this.view, bar);
    this.hover({ bar }, Math.max(xOf(this.view, start), this.view.gutter), shown + height);
  }

  private fillTable(): void {
    const old = this.details.querySelector(".scroll");
    if (!this.details.open) return;
    const made = tableOf(this.model, this.view.from, this.view.to, this.now, this.jobLink, TABLE_ROWS_MAX);
    if (old) old.replaceWith(made);
    else this.details.append(made);
  }
}

export async function mount(host: HTMLElement): Promise<Widget> {
  const gantt = new Gantt(host);
  try {
    await gantt.start();
  } catch (error) {
    gantt.destroy();
    throw error;
  }
  return gantt;
}
