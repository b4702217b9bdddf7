// What a timeline holds, as objects that increments change in place, and where each server is drawn.

/** The document of GET /v1/timeline. Instants are seconds since the Unix epoch. */
export interface TimelineDocument {
  at: string;
  since: string;
  mark: string;
  increment: boolean;
  servers: { name: string; rack: string; gpus: number; gpu_type: string; state: string; reservation: number | null }[];
  reservations: { id: number; starts_s: number; ends_s: number; servers: number[] }[];
  attempts: {
    id: string[];
    job: (number | null)[];
    name: (string | null)[];
    user: (string | null)[];
    state: (string | null)[];
    reason: (string | null)[];
    starts_s: number[];
    stop_requested_s: (number | null)[];
    ends_s: (number | null)[];
    p10_s: (number | null)[];
    p50_s: (number | null)[];
    p90_s: (number | null)[];
  };
  bars: { attempt: number[]; server: number[]; first_gpu: number[]; gpus: number[] };
  left_out: number;
  merged: { server: number[]; first_gpu: number[]; gpus: number[]; starts_s: number[]; ends_s: number[]; attempts: number[] };
  next: string | null;
}

export interface Attempt {
  id: string;
  job: number | null;
  name: string;
  user: string;
  family: string;
  state: string;
  reason: string;
  start: number;
  stop: number | null;
  end: number | null;
  p10: number | null;
  p50: number | null;
  p90: number | null;
  bars: Bar[];
  /** For how many short attempts it stands; 1 for a real one. */
  count: number;
}

export interface Bar {
  attempt: Attempt;
  server: Server;
  first: number;
  gpus: number;
}

export interface Server {
  name: string;
  rack: string;
  gpus: number;
  type: string;
  state: string;
  bars: Bar[];
  reserved: { id: number; start: number; end: number }[];
  /** Top and height within the rows, px; height 0: its rack is folded. */
  y: number;
  height: number;
  folded: boolean;
}

export interface Rack {
  name: string;
  servers: Server[];
  y: number;
  folded: boolean;
}

export const RACK_PX = 20;
const FOLDED_PX = 15;
const GAP_PX = 3;

/** The name without what numbers its runs: "bert-base-17" and "bert-base-18" are one family. */
function familyOf(name: string): string {
  return name.replace(/(?:[-_.\s#:/]+(?:run|trial|seed|v)?[-_.]?(?:\d+|(?=[a-f]*\d)[0-9a-f]{6,}))+$/i, "") || name;
}

function columns(document: TimelineDocument, index: number): Omit<Attempt, "bars" | "count"> {
  const from = document.attempts;
  const name = from.name[index] ?? "";
  return {
    id: from.id[index] as string,
    job: from.job[index] ?? null,
    name,
    user: from.user[index] ?? "",
    family: familyOf(name),
    state: from.state[index] ?? "",
    reason: from.reason[index] ?? "",
    start: from.starts_s[index] as number,
    stop: from.stop_requested_s[index] ?? null,
    end: from.ends_s[index] ?? null,
    p10: from.p10_s[index] ?? null,
    p50: from.p50_s[index] ?? null,
    p90: from.p90_s[index] ?? null,
  };
}

export class Model {
  attempts = new Map<string, Attempt>();
  servers: Server[] = [];
  racks: Rack[] = [];
  leftOut = 0;
  since = 0;
  height = 0;
  private readonly byName = new Map<string, Server>();
  private readonly foldedRacks = new Set<string>();
  private merges = 0;

  /** Attempts that have not ended. */
  open = 0;

  /** Take in a page of an answer, and return its attempts. ``first``: the first page of a whole answer, which replaces everything. */
  add(document: TimelineDocument, first: boolean): Attempt[] {
    if (first) {
      this.open = 0;
      this.attempts.clear();
      for (const server of this.servers) server.bars = [];
      this.leftOut = 0;
      this.since = Date.parse(document.since) / 1000;
    }
    if (!document.increment) this.leftOut = document.left_out;
    this.setServers(document);
    const changed = document.attempts.id.map((id, index) => {
      const attempt = this.attempts.get(id);
      if (!attempt) {
        const made: Attempt = { ...columns(document, index), bars: [], count: 1 };
        this.attempts.set(id, made);
        if (made.end === null) this.open += 1;
        return made;
      }
      if (attempt.end === null) this.open -= 1;
      Object.assign(attempt, columns(document, index));
      if (attempt.end === null) this.open += 1;
      return attempt;
    });
    if (!first) for (const attempt of changed) this.unplace(attempt);
    const { bars } = document;
    bars.attempt.forEach((position, index) => {
      const server = this.byName.get(document.servers[bars.server[index] as number]?.name ?? "");
      const attempt = changed[position];
      if (server && attempt) place(attempt, server, bars.first_gpu[index] as number, bars.gpus[index] as number);
    });
    if (!document.increment) this.addMerged(document);
    return changed;
  }

  /** Forget where an attempt was drawn. */
  private unplace(attempt: Attempt): void {
    for (const bar of attempt.bars) bar.server.bars.splice(bar.server.bars.indexOf(bar), 1);
    attempt.bars = [];
  }

  private addMerged(document: TimelineDocument): void {
    const { merged } = document;
    merged.server.forEach((position, index) => {
      const server = this.byName.get(document.servers[position]?.name ?? "");
      if (!server) return;
      const count = merged.attempts[index] as number;
      const attempt: Attempt = {
        id: `merged-${(this.merges += 1)}`,
        job: null,
        name: `${count} short attempts`,
        user: "",
        family: "",
        state: "merged",
        reason: "",
        start: merged.starts_s[index] as number,
        stop: null,
        end: merged.ends_s[index] as number,
        p10: null,
        p50: null,
        p90: null,
        bars: [],
        count,
      };
      this.attempts.set(attempt.id, attempt);
      place(attempt, server, merged.first_gpu[index] as number, merged.gpus[index] as number);
    });
  }

  private setServers(document: TimelineDocument): void {
    this.servers = document.servers.map((given) => {
      const known = this.byName.get(given.name);
      const made = known ?? { bars: [], reserved: [], y: 0, height: 0, folded: false, name: given.name, rack: "", gpus: 0, type: "", state: "" };
      Object.assign(made, { rack: given.rack, gpus: given.gpus, type: given.gpu_type, state: given.state, reserved: [] });
      if (!known) this.byName.set(given.name, made);
      return made;
    });
    for (const each of document.reservations) {
      const reserved = { id: each.id, start: each.starts_s, end: each.ends_s };
      for (const position of each.servers) this.servers[position]?.reserved.push(reserved);
    }
    const racks = new Map<string, Rack>();
    for (const server of this.servers) {
      let rack = racks.get(server.rack);
      if (!rack) racks.set(server.rack, (rack = { name: server.rack, servers: [], y: 0, folded: this.foldedRacks.has(server.rack) }));
      rack.servers.push(server);
    }
    this.racks = [...racks.values()];
  }

  fold(rack: Rack): void {
    rack.folded = !rack.folded;
    if (rack.folded) this.foldedRacks.add(rack.name);
    else this.foldedRacks.delete(rack.name);
  }

  get hasRacks(): boolean {
    return this.racks.length > 1 || this.racks.some((rack) => rack.name !== "");
  }

  /** Where servers stand when a GPU has so many px. */
  layOut(gpuPx: number): void {
    let y = 0;
    for (const rack of this.racks) {
      rack.y = y;
      if (this.hasRacks) y += RACK_PX;
      for (const server of rack.servers) {
        server.y = y;
        server.height = rack.folded ? 0 : server.folded ? Math.min(FOLDED_PX, server.gpus * gpuPx) : server.gpus * gpuPx;
        if (!rack.folded) y += server.height + GAP_PX;
      }
    }
    this.height = y;
  }
}

function place(attempt: Attempt, server: Server, first: number, gpus: number): void {
  const bar = { attempt, server, first, gpus };
  attempt.bars.push(bar);
  server.bars.push(bar);
}
