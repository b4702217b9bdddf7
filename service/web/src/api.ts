// Calls of the public API with the session's cookie.
import { meta, root, url } from "./dom";

export interface Fault {
  detail: string;
  pointer?: string;
  parameter?: string;
}

/** An answer that is not a success: a problem document (RFC 9457), or no answer at all (status 0). */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly faults: readonly Fault[] = [],
  ) {
    super(message);
  }
}

/** Go to the page of signing in, with the way back to this page. */
export function signIn(): void {
  const here = new URL(location.href);
  const base = root();
  const next = here.pathname.startsWith(base.pathname) ? here.pathname.slice(base.pathname.length) + here.search : "";
  const page = url("sign-in");
  if (here.pathname === page.pathname) return;
  if (next) page.searchParams.set("next", next);
  location.assign(page);
}

/** Was a page's request sent on to the page of signing in? */
export function isSignedOut(response: Response): boolean {
  return response.status === 401 || (response.redirected && new URL(response.url).pathname === url("sign-in").pathname);
}

function randomKey(): string {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

async function problemOf(response: Response): Promise<ApiError> {
  let message = `The service answered ${response.status}.`;
  let faults: Fault[] = [];
  try {
    const found: unknown = await response.json();
    if (typeof found === "object" && found !== null) {
      const { title, detail, errors } = found as { title?: unknown; detail?: unknown; errors?: unknown };
      message = [detail, title].find((text): text is string => typeof text === "string" && text !== "") ?? message;
      if (Array.isArray(errors)) faults = errors as Fault[];
    }
  } catch {
    // Not a problem document, so the status says all there is.
  }
  return new ApiError(response.status, message, faults);
}

const TIMEOUT_MS = 60_000;
/** Idempotency keys of requests whose outcome is unknown: the same request, made again, must not act twice. */
const unanswered = new Map<string, string>();

/** Call the API. Raises ApiError; an ended session leads to the page of signing in. */
export async function call(method: string, path: string | URL, body?: unknown, signal?: AbortSignal): Promise<Response> {
  const target = typeof path === "string" ? url(path) : path;
  const text = body === undefined ? null : JSON.stringify(body);
  const headers: Record<string, string> = { Accept: "application/json" };
  if (text !== null) headers["Content-Type"] = "application/json";
  if (method !== "GET") headers["X-CSRF-Token"] = meta("csrf-token");
  const request = `${target.href} ${text}`;
  if (method === "POST") {
    const key = unanswered.get(request) ?? randomKey();
    unanswered.set(request, key);
    headers["Idempotency-Key"] = key;
  }
  const timeout = AbortSignal.timeout(TIMEOUT_MS);
  let response: Response;
  try {
    response = await fetch(target, {
      method,
      headers,
      credentials: "same-origin",
      body: text,
      signal: signal ? AbortSignal.any([signal, timeout]) : timeout,
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, "The service does not answer. Check the connection, then try again.");
  }
  // After an answer of 500 and more, which may be a proxy's, nothing is known either.
  if (response.status < 500) unanswered.delete(request);
  if (isSignedOut(response)) signIn();
  if (!response.ok) throw await problemOf(response);
  return response;
}
