// Draws what is visible of a model. Nothing here changes the model or the view.
import { moment, day } from "../times";
import { type Ink, type Looks, stripes } from "./colours";
import { type Attempt, type Bar, type Model, RACK_PX, type Server } from "./model";
import { counted } from "./words";

export const AXIS_PX = 24;

export interface View {
  /** Instants at the left and right edge, seconds since the epoch. */
  from: number;
  to: number;
  scroll: number;
  width: number;
  height: number;
  gutter: number;
}

export interface Scene {
  model: Model;
  view: View;
  looks: Looks;
  ink: Ink;
  now: number;
  keyOf: (attempt: Attempt) => string;
  /** null: everything is lit. */
  lit: ((attempt: Attempt) => boolean) | null;
  selected: Attempt | null;
  hovered: Attempt | null;
}

export function xOf(view: View, time: number): number {
  return view.gutter + ((time - view.from) / (view.to - view.from)) * (view.width - view.gutter);
}

export function timeOf(view: View, x: number): number {
  return view.from + ((x - view.gutter) / (view.width - view.gutter)) * (view.to - view.from);
}

/** Servers whose rows are visible. */
export function visible(scene: Pick<Scene, "model" | "view">): Server[] {
  const top = scene.view.scroll;
  const bottom = top + scene.view.height - AXIS_PX;
  return scene.model.servers.filter((server) => server.height > 0 && server.y < bottom && server.y + server.height > top);
}

/** Top and height of a bar on the canvas. */
export function rowsOf(view: View, bar: Bar): [number, number] {
  const gpu = bar.server.height / bar.server.gpus;
  return [AXIS_PX + bar.server.y - view.scroll + bar.first * gpu, bar.gpus * gpu];
}

export function paint(context: CanvasRenderingContext2D, scene: Scene): void {
  const { view, ink } = scene;
  const servers = visible(scene);
  context.fillStyle = ink.panel;
  context.fillRect(0, 0, view.width, view.height);
  context.save();
  context.beginPath();
  context.rect(view.gutter, AXIS_PX, view.width - view.gutter, view.height - AXIS_PX);
  context.clip();
  paintRows(context, scene, servers);
  paintBars(context, scene, servers);
  paintUnusable(context, scene, servers);
  paintNow(context, scene);
  context.restore();
  paintGutter(context, scene, servers);
  paintAxis(context, scene);
}

function paintRows(context: CanvasRenderingContext2D, scene: Scene, servers: Server[]): void {
  const { view, ink } = scene;
  context.fillStyle = ink.sunken;
  for (const server of servers) context.fillRect(view.gutter, AXIS_PX + server.y - view.scroll, view.width, server.height);
  context.fillStyle = ink.line;
  for (const tick of ticks(view).times) context.fillRect(Math.round(xOf(view, tick)), AXIS_PX, 1, view.height);
  const pattern = stripes(context, ink.calm);
  for (const server of servers) {
    for (const each of server.reserved) {
      const [left, right] = [xOf(view, each.start), xOf(view, each.end)];
      context.fillStyle = pattern;
      context.globalAlpha = 0.55;
      context.fillRect(left, AXIS_PX + server.y - view.scroll, right - left, server.height);
    }
  }
  context.globalAlpha = 1;
}

function paintBars(context: CanvasRenderingContext2D, scene: Scene, servers: Server[]): void {
  // One pass per colour: changing the colour costs more than a rectangle.
  const groups = new Map<string, Bar[]>();
  const labelled: Bar[] = [];
  const { view } = scene;
  for (const server of servers) {
    for (const bar of server.bars) {
      const { attempt } = bar;
      const until = attempt.end ?? Math.max(scene.now, attempt.p90 ?? 0);
      if (until < view.from || attempt.start > view.to) continue;
      const dim = scene.lit && !scene.lit(attempt) ? "-" : "+";
      const key = dim + (attempt.job === null ? "" : scene.keyOf(attempt));
      const group = groups.get(key);
      if (group) group.push(bar);
      else groups.set(key, [bar]);
    }
  }
  for (const [key, bars] of groups) {
    const family = key.slice(1);
    const hidden = bars[0]?.attempt.job === null;
    const colour = hidden ? scene.ink.hidden : scene.looks.colour(family);
    const pattern = hidden ? null : scene.looks.pattern(context, family);
    context.globalAlpha = key[0] === "-" ? 0.16 : 1;
    paintGroup(context, scene, bars, colour, pattern);
    if (key[0] === "+") labelled.push(...bars);
  }
  context.globalAlpha = 1;
  paintMarks(context, scene, labelled);
}

function paintGroup(
  context: CanvasRenderingContext2D,
  scene: Scene,
  bars: Bar[],
  colour: string,
  pattern: CanvasPattern | string | null,
): void {
  const { view, now } = scene;
  const alpha = context.globalAlpha;
  for (const fill of pattern ? [colour, pattern] : [colour]) {
    context.fillStyle = fill;
    for (const bar of bars) {
      const [top, height] = rowsOf(view, bar);
      const left = Math.max(xOf(view, bar.attempt.start), view.gutter - 8);
      const right = Math.min(xOf(view, bar.attempt.end ?? now), view.width + 8);
      // A gap of a pixel tells neighbours apart, where there is room for it.
      context.fillRect(left, top, Math.max(right - left - (right - left > 3 ? 1 : 0), 1), Math.max(height - (height > 4 ? 1 : 0), 1));
    }
  }
  for (const bar of bars) {
    const { attempt } = bar;
    if (attempt.end !== null || attempt.p50 === null) continue;
    const [top, height] = rowsOf(view, bar);
    const [left, right] = [xOf(view, now), xOf(view, Math.max(attempt.p50, now))];
    if (right <= view.gutter || left >= view.width || right - left < 1) continue;
    const fade = context.createLinearGradient(left, 0, right, 0);
    fade.addColorStop(0, `${colour.startsWith("#") ? colour : "#888888"}99`);
    fade.addColorStop(1, `${colour.startsWith("#") ? colour : "#888888"}22`);
    context.fillStyle = fade;
    context.globalAlpha = alpha;
    context.fillRect(left, top, right - left, Math.max(height - (height > 4 ? 1 : 0), 1));
  }
}

function paintMarks(context: CanvasRenderingContext2D, scene: Scene, bars: Bar[]): void {
  const { view, ink, now } = scene;
  context.font = `11px ${ink.font}`;
  context.textBaseline = "middle";
  for (const bar of bars) {
    const { attempt } = bar;
    const [top, height] = rowsOf(view, bar);
    const left = xOf(view, attempt.start);
    const right = xOf(view, attempt.end ?? now);
    if (right - left > 3) paintEnd(context, scene, attempt, right, top, height);
    if (attempt.end === null && height >= 5) paintWhisker(context, scene, attempt, top + height / 2);
    const start = Math.max(left, view.gutter) + 4;
    const room = Math.min(right, view.width) - start - 8;
    if (height >= 11 && room > 24) paintLabel(context, attempt, start, top + Math.min(height, 22) / 2, room);
    if (attempt === scene.selected || attempt === scene.hovered) {
      context.strokeStyle = attempt === scene.selected ? ink.text : ink.muted;
      context.lineWidth = attempt === scene.selected ? 2.5 : 1.5;
      context.strokeRect(left, top, Math.max(right - left, 2), Math.max(height - 1, 2));
    }
  }
}

function paintEnd(context: CanvasRenderingContext2D, scene: Scene, attempt: Attempt, right: number, top: number, height: number): void {
  const { ink, view } = scene;
  if (attempt.stop !== null && attempt.end === null) {
    const left = xOf(view, attempt.stop);
    context.fillStyle = stripes(context, "rgb(0 0 0 / .6)");
    context.fillRect(left, top, Math.max(xOf(view, scene.now) - left, 2), height - 1);
  }
  if (attempt.state === "preempted") {
    // A notch: a bite out of the bar's end.
    const depth = Math.min(7, Math.max(height / 2, 3));
    context.fillStyle = ink.panel;
    context.beginPath();
    context.moveTo(right + 1, top);
    context.lineTo(right - depth, top + height / 2);
    context.lineTo(right + 1, top + height);
    context.fill();
    context.strokeStyle = ink.warn;
    context.lineWidth = 1.5;
    context.beginPath();
    context.moveTo(right, top);
    context.lineTo(right - depth, top + height / 2);
    context.lineTo(right, top + height - 1);
    context.stroke();
  } else if (attempt.state === "failed" || attempt.state === "lost") {
    context.fillStyle = ink.bad;
    context.fillRect(right - 4, top, 3, Math.max(height - 1, 1));
  }
}

function paintWhisker(context: CanvasRenderingContext2D, scene: Scene, attempt: Attempt, y: number): void {
  if (attempt.p10 === null || attempt.p50 === null || attempt.p90 === null) return;
  const { view, now, ink } = scene;
  const [low, mid, high] = [attempt.p10, attempt.p50, attempt.p90].map((time) => xOf(view, Math.max(time, now))) as [number, number, number];
  if (high < view.gutter || low > view.width) return;
  context.strokeStyle = ink.text;
  context.fillStyle = ink.text;
  context.lineWidth = 1;
  const line = Math.round(y) + 0.5;
  context.beginPath();
  context.moveTo(low, line);
  context.lineTo(high, line);
  for (const end of [low, high]) {
    context.moveTo(end, line - 3);
    context.lineTo(end, line + 3);
  }
  context.stroke();
  context.beginPath();
  context.arc(mid, line, 2.2, 0, 7);
  context.fill();
}

const widths = new Map<string, number>();

function paintLabel(context: CanvasRenderingContext2D, attempt: Attempt, x: number, y: number, room: number): void {
  const whole = attempt.job === null ? attempt.name : `${attempt.job} ${attempt.name}`;
  // Names are data: without marks that turn the direction of text, and never longer than the bar.
  let text = whole.replace(/[\u0000-\u001f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "").slice(0, 80);
  let width = widths.get(text);
  if (width === undefined) {
    if (widths.size > 5000) widths.clear();
    widths.set(text, (width = context.measureText(text).width));
  }
  if (width > room) text = text.slice(0, Math.max(Math.floor((text.length * room) / width) - 1, 0));
  if (text.length < 2) return;
  context.fillStyle = "#101418";
  context.fillText(text, x, y);
}

function paintUnusable(context: CanvasRenderingContext2D, scene: Scene, servers: Server[]): void {
  const { view, ink } = scene;
  const left = Math.max(xOf(view, scene.now), view.gutter);
  for (const server of servers) {
    if (server.state === "up") continue;
    context.fillStyle = stripes(context, server.state === "down" ? ink.bad : ink.warn, true);
    context.globalAlpha = 0.75;
    context.fillRect(left, AXIS_PX + server.y - view.scroll, view.width - left, server.height);
  }
  context.globalAlpha = 1;
}

function paintNow(context: CanvasRenderingContext2D, scene: Scene): void {
  const x = Math.round(xOf(scene.view, scene.now));
  context.fillStyle = scene.ink.accent;
  context.fillRect(x, AXIS_PX, 2, scene.view.height);
}

function paintGutter(context: CanvasRenderingContext2D, scene: Scene, servers: Server[]): void {
  const { view, ink, model } = scene;
  context.fillStyle = ink.panel;
  context.fillRect(0, AXIS_PX, view.gutter, view.height);
  context.textBaseline = "middle";
  context.save();
  context.beginPath();
  context.rect(0, AXIS_PX, view.width, view.height - AXIS_PX);
  context.clip();
  let free = -Infinity;
  context.font = `12px ${ink.font}`;
  for (const server of servers) {
    const top = AXIS_PX + server.y - view.scroll;
    const y = top + Math.min(server.height, 18) / 2;
    context.fillStyle = ink.line;
    context.fillRect(0, top + server.height + 1, view.gutter, 1);
    if (y - free < 12) continue;
    free = y;
    context.fillStyle = server.state === "up" ? ink.text : server.state === "down" ? ink.bad : ink.warn;
    const text = server.state === "up" ? server.name : `${server.name} ${server.state}`;
    context.fillText(`${server.folded ? "▸" : "▾"} ${text}`, 6, y, view.gutter - 10);
  }
  if (model.hasRacks) {
    for (const rack of model.racks) {
      const top = AXIS_PX + rack.y - view.scroll;
      if (top > view.height || top < AXIS_PX - RACK_PX) continue;
      context.fillStyle = ink.panel;
      context.fillRect(0, top, view.width, RACK_PX);
      context.fillStyle = ink.muted;
      context.font = `600 12px ${ink.font}`;
      const gpus = rack.servers.reduce((sum, server) => sum + server.gpus, 0);
      const about = `${counted(rack.servers.length, "server")}, ${counted(gpus, "GPU")}`;
      context.fillText(`${rack.folded ? "▸" : "▾"} ${rack.name || "No rack"}  ·  ${about}`, 6, top + RACK_PX / 2);
    }
  }
  context.restore();
}

const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800, 1209600];

/** Round instants of the reader's zone, and their distance. */
export function ticks(view: View): { times: number[]; step: number } {
  const least = ((view.to - view.from) / Math.max(view.width - view.gutter, 1)) * 92;
  const step = STEPS.find((each) => each >= least) ?? Math.ceil(least / 2419200) * 2419200;
  const shift = new Date(view.from * 1000).getTimezoneOffset() * 60;
  const times: number[] = [];
  for (let time = Math.ceil((view.from - shift) / step) * step + shift; time <= view.to; time += step) times.push(time);
  return { times, step };
}

function paintAxis(context: CanvasRenderingContext2D, scene: Scene): void {
  const { view, ink } = scene;
  context.fillStyle = ink.panel;
  context.fillRect(0, 0, view.width, AXIS_PX);
  context.fillStyle = ink.line;
  context.fillRect(0, AXIS_PX - 1, view.width, 1);
  context.font = `11px ${ink.font}`;
  context.textBaseline = "middle";
  const { times, step } = ticks(view);
  const now = new Date(scene.now * 1000);
  const here = xOf(view, scene.now);
  for (const time of times) {
    const x = xOf(view, time);
    const date = new Date(time * 1000);
    const text = step >= 86400 ? day(date, now) : moment(date, now, step < 60);
    const width = context.measureText(text).width;
    if (x < view.gutter || x + width + 4 > view.width || (x < here + 34 && x + width + 8 > here)) continue;
    context.fillStyle = ink.muted;
    context.fillText(text, x + 3, AXIS_PX / 2);
  }
  if (here >= view.gutter && here <= view.width) {
    context.fillStyle = ink.accent;
    context.font = `600 11px ${ink.font}`;
    context.textAlign = here > view.width - 40 ? "right" : "left";
    context.fillText("now", here + (here > view.width - 40 ? -3 : 3), AXIS_PX / 2);
    context.textAlign = "left";
  }
}
