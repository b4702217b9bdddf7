// YAML as text: its value, its faults, and where in it a JSON pointer points.
import { isMap, parseDocument } from "yaml";
import { wordsOf } from "./command-line";

/** A fault and its place, as offsets into the text. */
export interface TextFault {
  from: number;
  to: number;
  severity: "error";
  message: string;
}

/** What is wrong with the text as YAML. */
export function faultsOf(text: string): TextFault[] {
  const { errors } = parseDocument(text, { prettyErrors: false });
  if (!errors.length) {
    try {
      valueOf(text);
    } catch (error) {
      return [{ from: 0, to: 0, severity: "error", message: String(error) }];
    }
  }
  return errors.map((error) => ({ from: Math.min(error.pos[0], text.length), to: Math.min(error.pos[1], text.length), severity: "error", message: error.message }));
}

/** The text's value. An alias cannot make it grow without bound. */
export function valueOf(text: string): unknown {
  return parseDocument(text).toJS({ maxAliasCount: 100 });
}

/** The text as a body of the API, and what is wrong with it: a command that is one text becomes its words, as in a job file. */
export function bodyOf(text: string): { body: unknown; faults: TextFault[] } {
  const body = valueOf(text);
  const several = (body as { jobs?: unknown } | null)?.jobs;
  const jobs: [string, unknown][] = Array.isArray(body)
    ? body.map((job, position) => [`/${position}`, job])
    : Array.isArray(several)
      ? several.map((job, position) => [`/jobs/${position}`, job])
      : [["", body]];
  const faults: TextFault[] = [];
  for (const [pointer, job] of jobs) {
    const found = job as { command?: unknown } | null;
    if (typeof found?.command !== "string") continue;
    const words = wordsOf(found.command);
    if (typeof words === "string") faults.push(located(text, `${pointer}/command`, words));
    else found.command = words;
  }
  return { body, faults };
}

/** A fault at the place of the text that its pointer names: the key if the value is missing. */
export function located(text: string, pointer: string, message: string): TextFault {
  const path: (string | number)[] = pointer.replace(/^#?\//, "").split("/").filter(Boolean).map((part) => (/^\d+$/.test(part) ? Number(part) : part.replaceAll("~1", "/").replaceAll("~0", "~")));
  const found = parseDocument(text);
  for (let depth = path.length; depth > 0; depth -= 1) {
    const node = found.getIn(path.slice(0, depth), true) as { range?: [number, number, number] } | undefined;
    const holder: unknown = depth === 1 ? found.contents : found.getIn(path.slice(0, depth - 1), true);
    const pair = isMap(holder) ? holder.items.find((each) => String(each.key) === String(path[depth - 1])) : undefined;
    const range = (pair?.key as { range?: [number, number, number] } | undefined)?.range ?? node?.range;
    if (range) return { from: range[0], to: Math.max(range[1], range[0]), severity: "error", message: `${path.join(".")}: ${message}` };
  }
  return { from: 0, to: 0, severity: "error", message: path.length ? `${path.join(".")}: ${message}` : message };
}
