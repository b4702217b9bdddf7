// Parts of a page that need a script of their own, loaded only where they are.
import { all, announce, el } from "./dom";

export interface Widget {
  /** The page was refreshed, and the element's attributes or its inline JSON may have changed. */
  refresh?(fresh: Element): void;
  destroy?(): void;
}

type Mount = (element: HTMLElement) => Widget | Promise<Widget>;

const LOADERS: Record<string, () => Promise<{ mount: Mount }>> = {};
const mounted = new Map<Element, Widget | null>();
/** Each refresh tries again to load these; the failure is announced once. */
const failed = new WeakSet<Element>();

export function register(name: string, load: () => Promise<{ mount: Mount }>): void {
  LOADERS[name] = load;
}

/** Load and start the widgets below a node; stop those that have left the page. */
export function mountWidgets(below: ParentNode = document): void {
  for (const [element, widget] of mounted) {
    if (element.isConnected) continue;
    widget?.destroy?.();
    mounted.delete(element);
  }
  for (const element of all(below, "[data-widget]")) if (!mounted.has(element)) void start(element);
}

async function start(element: HTMLElement): Promise<void> {
  const load = LOADERS[element.dataset["widget"] ?? ""];
  if (!load) return;
  mounted.set(element, null);
  try {
    const widget = await (await load()).mount(element);
    if (element.isConnected && mounted.has(element)) mounted.set(element, widget);
    else widget.destroy?.();
    element.dataset["mounted"] = "";
    failed.delete(element);
  } catch (error) {
    mounted.delete(element);
    element.dataset["mounted"] = "failed";
    element.append(el("p", { class: "error" }, "This part of the page could not be loaded. Reload the page to try again."));
    if (failed.has(element)) return;
    failed.add(element);
    announce(`A part of the page could not be loaded: ${error instanceof Error ? error.message : String(error)}`, "error");
  }
}

/** Is the element a widget's? The refresh leaves its inside alone. */
export function isWidget(node: Node): node is HTMLElement {
  return node instanceof HTMLElement && mounted.has(node);
}

/** Hand the refreshed element to its widget. */
export function refreshWidget(element: HTMLElement, fresh: Element): void {
  for (const { name, value } of [...fresh.attributes]) {
    if (name !== "data-mounted" && element.getAttribute(name) !== value) element.setAttribute(name, value);
  }
  mounted.get(element)?.refresh?.(fresh);
}
