// The fields of the form for a job: how each one stands in the document, and what its text means there.
import { lineOf, wordsOf } from "./command-line";
import { secondsOf, spanOf } from "./spans";

export type Job = Record<string, unknown>;

/** Keys and their new values; undefined removes a key. */
export type Change = [path: string[], value: unknown][];

export interface Field {
  /** The text for the document's value; null where the form cannot show it. */
  read(job: Job): string | null;
  /** What the text changes; a sentence where it is not allowed. */
  write(text: string): Change | string;
}

function plain(key: string): Field {
  return {
    read: (job) => (job[key] === undefined || job[key] === null ? "" : typeof job[key] === "object" ? null : String(job[key])),
    write: (text) => [[[key], text || undefined]],
  };
}

function whole(key: string, least: number): Field {
  return { ...plain(key), write: (text) => numbered(text, least, (value) => [[[key], value]]) };
}

function numbered(text: string, least: number, change: (value: number | undefined) => Change): Change | string {
  if (!text) return change(undefined);
  const value = Number(text);
  return Number.isSafeInteger(value) && value >= least ? change(value) : `must be a whole number of at least ${least} (got ${text})`;
}

function span(key: string, none: string): Field {
  return {
    read: (job) => {
      const value = job[key];
      if (value === null && none) return none;
      return value === undefined || value === null ? "" : typeof value === "number" ? spanOf(value) : null;
    },
    write: (text) => {
      if (!text) return [[[key], undefined]];
      if (none && text.toLowerCase() === none) return [[[key], null]];
      const seconds = secondsOf(text);
      return seconds ? [[[key], seconds]] : `must be a duration such as 2 h 30 min${none ? `, or ${none}` : ""} (got ${text})`;
    },
  };
}

function list(text: string): string[] {
  return text.split(",").map((part) => part.trim()).filter(Boolean);
}

const command: Field = {
  read: ({ command: words }) => {
    if (words === undefined || words === null) return "";
    if (typeof words === "string") return words.includes("\n") ? null : words;
    return Array.isArray(words) && words.every((word) => typeof word === "string" || typeof word === "number") ? lineOf(words.map(String)) : null;
  },
  write: (text) => {
    const words = wordsOf(text);
    return typeof words === "string" ? words : [[["command"], words.length ? words : undefined]];
  },
};

const gpuType: Field = {
  read: ({ gpu_type: one, gpu_types: several }) => {
    if (Array.isArray(several) && several.length) return several.map(String).join(", ");
    return one === undefined || one === null ? "" : String(one);
  },
  write: (text) => {
    const names = list(text);
    return [[["gpu_type"], names.length === 1 ? names[0] : undefined], [["gpu_types"], names.length > 1 ? names : undefined]];
  },
};

const after: Field = {
  read: ({ after: jobs }) => {
    if (jobs === undefined || jobs === null) return "";
    return Array.isArray(jobs) && jobs.every((job) => typeof job === "number") ? jobs.join(", ") : null;
  },
  write: (text) => {
    const numbers = list(text).map(Number);
    if (!numbers.every((number) => Number.isSafeInteger(number) && number > 0)) return `must be numbers of jobs, separated by commas (got ${text})`;
    return [[["after"], numbers.length ? numbers : undefined]];
  },
};

const array: Field = {
  read: ({ array: found }) => {
    if (found === undefined || found === null) return "";
    const { count, indices } = found as { count?: unknown; indices?: unknown };
    return typeof count === "number" && !indices ? String(count) : null;
  },
  write: (text) => numbered(text, 1, (value) => [value === undefined ? [["array"], undefined] : [["array", "count"], value]]),
};

/** The fields by the names of their inputs. */
export const FIELDS: Record<string, Field> = {
  name: plain("name"),
  command,
  gpus: whole("gpus", 1),
  gpu_type: gpuType,
  project: plain("project"),
  priority: whole("priority", -1_000_000),
  walltime: span("walltime_s", ""),
  after,
  checkpoint: span("checkpoint_period_s", "never"),
  array,
  image: plain("image"),
};
