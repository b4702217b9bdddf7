// Fetches a timeline: the period that is looked at, then only what has changed.
import { ApiError, call } from "../api";
import type { Attempt, Model, TimelineDocument } from "./model";

const PAGES_MAX = 5;

export class Source {
  private mark = "";
  private sinceS: number | null = null;
  private resolutionS = 0;
  private under: Promise<Attempt[]> | null = null;
  /** The service's clock minus ours, s. */
  clockS = 0;
  /** The length of the period when it was loaded, s. */
  private spanS = Infinity;

  constructor(
    private readonly url: URL,
    private readonly model: Model,
  ) {}

  /** Load a period (null: the service's own choice), with attempts shorter than so many seconds merged. */
  load(sinceS: number | null, resolutionS: number): Promise<Attempt[]> {
    this.sinceS = sinceS;
    this.resolutionS = resolutionS;
    return this.alone(() => this.pages(true));
  }

  /** Load what has changed: the attempts that did. */
  update(): Promise<Attempt[]> {
    return this.alone(() => this.pages(this.mark === ""));
  }

  /** Does the view need what was not loaded? */
  lacks(fromS: number, pixelS: number): boolean {
    if (fromS < this.model.since - 1) return true;
    return this.model.leftOut > 0 && pixelS * 2 < this.resolutionS / 4;
  }

  /** How many times as long as at its loading the period is now. */
  get growth(): number {
    return (Date.now() / 1000 + this.clockS - this.model.since) / this.spanS;
  }

  private async alone(work: () => Promise<Attempt[]>): Promise<Attempt[]> {
    while (this.under) await this.under.catch(() => []);
    this.under = work();
    try {
      return await this.under;
    } finally {
      this.under = null;
    }
  }

  private async pages(whole: boolean): Promise<Attempt[]> {
    const changed: Attempt[] = [];
    let after: string | null = null;
    let first = true;
    for (let page = 0; page < PAGES_MAX; page += 1) {
      const found = await this.page(whole, after);
      const replaces = first && !found.increment;
      performance.mark("gantt-apply");
      for (const attempt of this.model.add(found, replaces)) changed.push(attempt);
      performance.measure("gantt-apply", "gantt-apply");
      const atS = Date.parse(found.at) / 1000;
      this.clockS = atS - Date.now() / 1000;
      if (first) this.mark = found.mark;
      if (replaces) this.spanS = atS - this.model.since;
      first = false;
      after = found.next;
      if (!after) break;
    }
    if (!after || !whole || this.resolutionS >= this.spanS) return changed;
    // Too many to load: the short ones are merged.
    this.resolutionS = Math.max(4 * this.resolutionS, this.spanS / 500);
    return this.pages(true);
  }

  private async page(whole: boolean, after: string | null): Promise<TimelineDocument> {
    const url = new URL(this.url);
    if (this.sinceS !== null) url.searchParams.set("since", new Date(this.sinceS * 1000).toISOString());
    if (whole && this.resolutionS > 0) url.searchParams.set("resolution_s", this.resolutionS.toFixed(3));
    if (!whole) url.searchParams.set("changed_since", this.mark);
    if (after) url.searchParams.set("after", after);
    const response = await call("GET", url);
    const found: unknown = await response.json();
    if (typeof found !== "object" || found === null || !("bars" in found)) throw new ApiError(0, "The answer is not a timeline.");
    return found as TimelineDocument;
  }
}
